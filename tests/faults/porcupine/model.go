package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

// Operation is one call of a client. Times are nanoseconds of one monotonic clock.
type Operation struct {
	Object string `json:"object"`
	Client int    `json:"client"`
	// send, read (of a queue); commit, committed (of a consumer group's offset).
	Kind string `json:"kind"`
	Call int64  `json:"call"`
	// Absent: the outcome is unknown. The operation may have happened at any time after its call, or never.
	Return *int64 `json:"return"`
	// Of a send: the offset that it got, absent with an unknown outcome. Of the offset's operations: the offset, -1 for none.
	Offset *int `json:"offset"`
	// Of a send.
	Value string `json:"value"`
	// Of a read: values from `first` on, and the end of the queue at that moment.
	First  int      `json:"first"`
	Values []string `json:"values"`
	End    int      `json:"end"`
}

func (one Operation) String() string {
	switch one.Kind {
	case "read":
		return fmt.Sprintf("client %d read %d values from %d on and the end %d", one.Client, len(one.Values), one.First, one.End)
	case "send":
		if one.Offset == nil {
			return fmt.Sprintf("client %d sent %q with an unknown outcome", one.Client, one.Value)
		}
		return fmt.Sprintf("client %d sent %q to offset %d", one.Client, one.Value, *one.Offset)
	}
	return fmt.Sprintf("client %d: %s %d", one.Client, one.Kind, *one.Offset)
}

// modelOf returns the sequential specification of an object and its operations without those that no answer shows.
//
// A search over operations that may happen at any later time or never takes exponential time. Two facts shorten it, and change no verdict,
// because values and committed offsets are unique: what an answer shows has happened before that answer returned; and what no answer shows
// can be left out of every legal order, except a send that explains an offset whose message no answer shows.
func modelOf(operations []Operation) (porcupine.Model, []Operation, error) {
	for _, one := range operations {
		if (one.Kind == "send" || one.Kind == "read") != (operations[0].Kind == "send" || operations[0].Kind == "read") {
			return porcupine.Model{}, nil, errors.New("one object is either a queue or a committed offset")
		}
		complete := one.Return != nil && (one.Offset != nil || one.Kind == "read")
		unknown := one.Return == nil && (one.Kind == "send" && one.Offset == nil || one.Kind == "commit" && one.Offset != nil)
		if !complete && !unknown || one.Return != nil && *one.Return < one.Call {
			return porcupine.Model{}, nil, fmt.Errorf("not an operation: %+v", one)
		}
	}
	switch operations[0].Kind {
	case "send", "read":
		return queue(operations)
	case "commit", "committed":
		return register(operations)
	}
	return porcupine.Model{}, nil, fmt.Errorf("unknown kind of operation %q", operations[0].Kind)
}

// entry is the last message of a log; nil is the empty log.
type entry struct {
	value  string
	before *entry
	end    int
}

func end(log *entry) int {
	if log == nil {
		return 0
	}
	return log.end
}

func equalLogs(one, other *entry) bool {
	if end(one) != end(other) {
		return false
	}
	for one != other {
		if one.value != other.value {
			return false
		}
		one, other = one.before, other.before
	}
	return true
}

// queue: a send appends its value and learns the offset; a read learns a run of values and the end.
func queue(operations []Operation) (porcupine.Model, []Operation, error) {
	shown, places, returned, last, err := answers(operations)
	if err != nil {
		return porcupine.Model{}, nil, err
	}
	holes := false
	for offset := 0; offset < last; offset++ {
		holes = holes || !shown[offset]
	}
	settled := []Operation{}
	for _, one := range operations {
		if one.Return == nil {
			place, seen := places[one.Value]
			if !seen && !holes {
				continue
			}
			until := int64(math.MaxInt64)
			if seen {
				one.Offset, until = &place, max(one.Call, returned[one.Value])
			}
			one.Return = &until
		}
		settled = append(settled, one)
	}
	step := func(state, input, _ interface{}) (bool, interface{}) {
		log, one := state.(*entry), input.(Operation)
		if one.Kind == "read" {
			return reads(log, one), log
		}
		at := end(log)
		fits := at >= last || !shown[at]
		if one.Offset != nil {
			fits = at == *one.Offset
		}
		return fits, &entry{one.Value, log, at + 1}
	}
	model := porcupine.Model{
		Init:  func() interface{} { return (*entry)(nil) },
		Step:  step,
		Equal: func(one, other interface{}) bool { return equalLogs(one.(*entry), other.(*entry)) },
	}
	return model, settled, nil
}

// answers returns which offsets some answer shows a value of; by value the offset where a read saw it and when the first such read
// returned; and the highest end.
func answers(operations []Operation) (shown map[int]bool, places map[string]int, returned map[string]int64, last int, err error) {
	shown, places, returned = map[int]bool{}, map[string]int{}, map[string]int64{}
	sent := map[string]bool{}
	for _, one := range operations {
		if one.Kind == "send" {
			if sent[one.Value] {
				return nil, nil, nil, 0, fmt.Errorf("the value %q was sent twice; values must be unique", one.Value)
			}
			sent[one.Value] = true
			if one.Offset != nil {
				shown[*one.Offset] = true
				last = max(last, *one.Offset+1)
			}
		}
		for at, value := range one.Values {
			shown[one.First+at] = true
			places[value] = one.First + at
			if first, seen := returned[value]; !seen || *one.Return < first {
				returned[value] = *one.Return
			}
		}
		last = max(last, one.End)
	}
	return shown, places, returned, last, nil
}

func reads(log *entry, one Operation) bool {
	if end(log) != one.End || one.First < 0 || one.First+len(one.Values) > one.End {
		return false
	}
	for log != nil && log.end > one.First+len(one.Values) {
		log = log.before
	}
	for at := len(one.Values) - 1; at >= 0; at-- {
		if log.value != one.Values[at] {
			return false
		}
		log = log.before
	}
	return true
}

// register: a commit sets the offset, forwards or backwards; committed learns the last one.
func register(operations []Operation) (porcupine.Model, []Operation, error) {
	returned, commits := map[int]int64{}, map[int]bool{}
	for _, one := range operations {
		if one.Kind == "commit" {
			if commits[*one.Offset] {
				return porcupine.Model{}, nil, fmt.Errorf("the offset %d was committed twice; committed offsets must be unique", *one.Offset)
			}
			commits[*one.Offset] = true
		} else if first, seen := returned[*one.Offset]; !seen || *one.Return < first {
			returned[*one.Offset] = *one.Return
		}
	}
	settled := []Operation{}
	for _, one := range operations {
		if one.Return == nil {
			first, seen := returned[*one.Offset]
			if !seen {
				continue
			}
			until := max(one.Call, first)
			one.Return = &until
		}
		settled = append(settled, one)
	}
	step := func(state, input, _ interface{}) (bool, interface{}) {
		one := input.(Operation)
		return one.Kind == "commit" || *one.Offset == state.(int), *one.Offset
	}
	return porcupine.Model{Init: func() interface{} { return -1 }, Step: step}, settled, nil
}
