// Checks histories of clients with Porcupine (github.com/anishathalye/porcupine).
//
// Reads one operation per JSON line from stdin, in any order, and prints one JSON line per object (a queue, or the committed offset of a
// consumer group in a queue): whether the operations on it are linearizable. A history that cannot be checked ends the program with status 2.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is the answer for one object: Ok, Illegal, or Unknown if the time did not suffice.
type Verdict struct {
	Object     string `json:"object"`
	Result     string `json:"result"`
	Operations int    `json:"operations"`
	// Of an illegal history: how many operations the longest legal order holds, and the operation that ends first among the others.
	Ordered int    `json:"ordered"`
	Stuck   string `json:"stuck,omitempty"`
}

func main() {
	limit := flag.Duration("limit", time.Minute, "time for each object")
	flag.Parse()
	names, objects, err := read(bufio.NewReader(os.Stdin))
	for _, name := range names {
		if err != nil {
			break
		}
		var verdict Verdict
		if verdict, err = check(name, objects[name], *limit); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(verdict)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "histories:", err)
		os.Exit(2)
	}
}

// read returns the operations by object, and the objects in the order of their first operations.
func read(lines io.Reader) ([]string, map[string][]Operation, error) {
	names, objects := []string{}, map[string][]Operation{}
	decoder := json.NewDecoder(lines)
	decoder.DisallowUnknownFields()
	for number := 1; ; number++ {
		var operation Operation
		if err := decoder.Decode(&operation); errors.Is(err, io.EOF) {
			return names, objects, nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("operation %d: %w", number, err)
		}
		if _, known := objects[operation.Object]; !known {
			names = append(names, operation.Object)
		}
		objects[operation.Object] = append(objects[operation.Object], operation)
	}
}

func check(name string, operations []Operation, limit time.Duration) (Verdict, error) {
	model, settled, err := modelOf(operations)
	if err != nil {
		return Verdict{}, fmt.Errorf("%s: %w", name, err)
	}
	history := make([]porcupine.Operation, len(settled))
	for at, one := range settled {
		history[at] = porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Call, Return: *one.Return}
	}
	verdict := Verdict{Object: name, Operations: len(history), Ordered: len(history)}
	result := porcupine.CheckOperationsTimeout(model, history, limit)
	verdict.Result = string(result)
	if result == porcupine.Illegal {
		verdict.Ordered, verdict.Stuck = explain(model, history, limit)
	}
	return verdict, nil
}

// explain repeats a check and keeps the longest legal order, which takes memory that a check of a legal history can do without.
func explain(model porcupine.Model, history []porcupine.Operation, limit time.Duration) (int, string) {
	_, info := porcupine.CheckOperationsVerbose(model, history, limit)
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	ordered := make([]bool, len(history))
	for _, at := range longest {
		ordered[at] = true
	}
	stuck := -1
	for at := range history {
		if !ordered[at] && (stuck < 0 || history[at].Return < history[stuck].Return) {
			stuck = at
		}
	}
	return len(longest), history[stuck].Input.(Operation).String()
}
