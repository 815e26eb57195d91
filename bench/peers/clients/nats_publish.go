// Publishes to a stream of three replicas through its leader, a fixed number of messages unacknowledged, and times every acknowledgement.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func create(js nats.JetStreamContext) string {
	config := &nats.StreamConfig{Name: "bench", Subjects: []string{"bench"}, Replicas: 3, Storage: nats.FileStorage, Discard: nats.DiscardOld}
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		if _, err = js.AddStream(config); err != nil {
			continue
		}
		info, err := js.StreamInfo("bench")
		if err == nil && info.Cluster != nil && info.Cluster.Leader != "" && len(info.Cluster.Replicas) == 2 {
			return info.Cluster.Leader
		}
	}
	check(fmt.Errorf("no stream: %v", err))
	return ""
}

type sent struct {
	at  time.Time
	ack nats.PubAckFuture
}

func main() {
	servers := flag.String("servers", "", "name=url,…")
	size := flag.Int("size", 100, "bytes of a message")
	window := flag.Int("window", 4000, "messages in flight")
	seconds := flag.Float64("seconds", 10, "")
	warmUp := flag.Float64("warm-up", 3, "")
	flag.Parse()
	urls := map[string]string{}
	var all []string
	for _, one := range strings.Split(*servers, ",") {
		name, url, _ := strings.Cut(one, "=")
		urls[name] = url
		all = append(all, url)
	}
	first, err := nats.Connect(strings.Join(all, ","), nats.Timeout(20*time.Second))
	check(err)
	js, err := first.JetStream(nats.MaxWait(10 * time.Second))
	check(err)
	leader := create(js)
	first.Close()
	connection, err := nats.Connect(urls[leader])
	check(err)
	js, err = connection.JetStream(nats.PublishAsyncMaxPending(*window))
	check(err)

	body := make([]byte, *size)
	begin := time.Now().Add(time.Duration(*warmUp * 1e9))
	end := begin.Add(time.Duration(*seconds * 1e9))
	queue := make(chan sent, *window)
	done := make(chan bool)
	var times []float64
	total := 0
	go func() {
		for one := range queue {
			select {
			case <-one.ack.Ok():
				now := time.Now()
				total++
				if now.After(begin) && now.Before(end) {
					times = append(times, now.Sub(one.at).Seconds()*1000)
				}
			case err := <-one.ack.Err():
				check(err)
			}
		}
		done <- true
	}()
	for time.Now().Before(end) {
		at := time.Now()
		ack, err := js.PublishAsync("bench", body, nats.StallWait(time.Minute))
		check(err)
		queue <- sent{at, ack}
	}
	close(queue)
	<-done
	sort.Float64s(times)
	part := func(p float64) float64 { return times[int(p*float64(len(times)-1))] }
	result := map[string]float64{"messages_per_s": float64(len(times)) / *seconds, "p50_ms": part(0.5), "p99_ms": part(0.99), "total": float64(total)}
	check(json.NewEncoder(os.Stdout).Encode(result))
}
