// The unmodified official Go client, one scenario a run: SCENARIO ENDPOINTS TOPIC GROUP COUNT TLS. Results are lines NAME=VALUE on stdout.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	scenario, endpoints, topic, group = os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	background                        = context.Background()
	acknowledgements                  = 1
)

func count() int {
	n, err := strconv.Atoi(os.Args[5])
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(name string, value any) { fmt.Printf("%s=%v\n", name, value) }

func config() *rmq.Config {
	return &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{AccessKey: "ak", AccessSecret: "sk"}}
}

func producer(options ...rmq.ProducerOption) rmq.Producer {
	p, err := rmq.NewProducer(config(), append(options, rmq.WithTopics(topic))...)
	must(err)
	must(p.Start())
	return p
}

func message(body string) *rmq.Message { return &rmq.Message{Topic: topic, Body: []byte(body)} }

func send(p rmq.Producer, m *rmq.Message) *rmq.SendReceipt {
	receipts, err := p.Send(background, m)
	must(err)
	return receipts[0]
}

// receive takes one message at a time; an empty poll is an error in this client.
func receive(wanted, tries int) []*rmq.MessageView {
	c, err := rmq.NewSimpleConsumer(config(), rmq.WithSimpleAwaitDuration(2*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	must(err)
	must(c.Start())
	var got []*rmq.MessageView
	for ; len(got) < wanted && tries > 0; tries-- {
		messages, err := c.Receive(background, 1, 10*time.Second)
		var status *rmq.ErrRpcStatus
		if err != nil && !(errors.As(err, &status) && status.GetCode() == 40401) {
			must(err)
		}
		for _, m := range messages {
			for i := 0; i < acknowledgements; i++ {
				must(c.Ack(background, m))
			}
			got = append(got, m)
		}
	}
	return got
}

func bodies(messages []*rmq.MessageView) string {
	var all []string
	for _, m := range messages {
		all = append(all, string(m.GetBody()))
	}
	return strings.Join(all, ",")
}

// listen runs a push consumer until `wanted` messages came.
func listen(wanted int, consume func(*rmq.MessageView) (string, rmq.ConsumerResult)) []string {
	var lock sync.Mutex
	var seen []string
	done := make(chan bool, 1000)
	listener := &rmq.FuncMessageListener{Consume: func(m *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		text, result := consume(m)
		seen = append(seen, text)
		done <- true
		return result
	}}
	c, err := rmq.NewPushConsumer(config(), rmq.WithPushAwaitDuration(2*time.Second), rmq.WithPushMessageListener(listener),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	must(err)
	must(c.Start())
	for i := 0; i < wanted; i++ {
		<-done
	}
	lock.Lock()
	defer lock.Unlock()
	return seen
}

func unknown() {
	_, err := producer().Send(background, &rmq.Message{Topic: topic + "-unknown", Body: []byte("x")})
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		say("code", status.GetCode())
	} else {
		say("error", err)
	}
}

func twice() {
	send(producer(), message("once"))
	acknowledgements = 2
	say("got", bodies(receive(1, 15)))
}

func filter() {
	wrong := rmq.NewFilterExpressionWithType("a > 1 AND b LIKE 'x%'", rmq.SQL92)
	c, err := rmq.NewSimpleConsumer(config(), rmq.WithSimpleAwaitDuration(2*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: wrong}))
	must(err)
	must(c.Start())
	say("built", true)
	_, err = c.Receive(background, 1, 10*time.Second)
	say("error", strings.ReplaceAll(fmt.Sprint(err), "\n", "|"))
}

func roundtrip() {
	body := make([]byte, 256)
	for i := range body {
		body[i] = byte(i)
	}
	m := &rmq.Message{Topic: topic, Body: body}
	m.SetTag("tagA")
	m.SetKeys("k1", "k2")
	m.AddProperty("x", "1")
	m.AddProperty("y", "ü")
	say("sent", send(producer(), m).MessageID)
	got := receive(1, 15)[0]
	say("id", got.GetMessageId())
	say("same", bytes.Equal(got.GetBody(), body))
	say("tag", *got.GetTag())
	say("keys", strings.Join(got.GetKeys(), ","))
	var pairs []string
	for key, value := range got.GetProperties() {
		pairs = append(pairs, key+":"+value)
	}
	sort.Strings(pairs)
	say("properties", strings.Join(pairs, ","))
	say("attempt", got.GetDeliveryAttempt())
}

func push() {
	p := producer()
	for i := 0; i < count(); i++ {
		send(p, message(strconv.Itoa(i)))
	}
	seen := listen(count()+1, func(m *rmq.MessageView) (string, rmq.ConsumerResult) {
		text := fmt.Sprintf("%s:%d", m.GetBody(), m.GetDeliveryAttempt())
		if text == "0:1" {
			return text, rmq.FAILURE
		}
		return text, rmq.SUCCESS
	})
	sort.Strings(seen)
	say("seen", strings.Join(seen, ","))
}

func fifo() {
	p := producer()
	for i := 0; i < count(); i++ {
		m := message(strconv.Itoa(i))
		m.SetMessageGroup(fmt.Sprintf("g%d", i%3))
		send(p, m)
	}
	say("seen", strings.Join(listen(count(), func(m *rmq.MessageView) (string, rmq.ConsumerResult) {
		return *m.GetMessageGroup() + ":" + string(m.GetBody()), rmq.SUCCESS
	}), ","))
}

func delay() {
	p, due := producer(), time.Now().Add(3*time.Second)
	kept, recalled := message("kept"), message("recalled")
	kept.SetDelayTimestamp(due)
	recalled.SetDelayTimestamp(due)
	say("kept", send(p, kept).MessageID)
	receipt := send(p, recalled)
	say("wanted", receipt.MessageID)
	id, err := p.Recall(background, topic, receipt.RecallHandle)
	must(err)
	say("recalled", id)
	got := receive(1, 15)
	say("late", time.Since(due).Milliseconds())
	say("got", bodies(got))
	say("after", bodies(receive(1, 1)))
}

func transaction() {
	var asked []string
	p := producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: func(m *rmq.MessageView) rmq.TransactionResolution {
		asked = append(asked, string(m.GetBody()))
		return rmq.COMMIT
	}}))
	for _, decision := range []string{"commit", "rollback", "nothing"} {
		t := p.BeginTransaction()
		_, err := p.SendWithTransaction(background, message(decision), t)
		must(err)
		switch decision {
		case "commit":
			must(t.Commit())
		case "rollback":
			must(t.RollBack())
		}
	}
	got := strings.Split(bodies(receive(2, 15)), ",")
	sort.Strings(got)
	say("got", strings.Join(got, ","))
	say("asked", strings.Join(asked, ","))
}

func priority() {
	p := producer()
	for _, level := range []int32{1, 7, 3} {
		m := message(strconv.Itoa(int(level)))
		must(m.SetPriority(level))
		send(p, m)
	}
	say("got", bodies(receive(3, 15)))
}

func main() {
	rmq.ResetLogger()
	rmq.EnableSsl = os.Args[6] == "tls"
	scenarios := map[string]func(){"unknown": unknown, "twice": twice, "filter": filter, "roundtrip": roundtrip, "push": push, "fifo": fifo, "delay": delay,
		"transaction": transaction, "priority": priority}
	scenarios[scenario]()
	os.Exit(0)
}
