// The scenario `transactions` of tests/compat/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type step struct {
	Do         string
	ID         string
	TimeoutMs  int `json:"timeout_ms"`
	Group      string
	Source     string
	Topic      string
	Partition  int32
	Value      string
	Count      int
	Isolation  string
	Partitions int
	TimeoutS   int `json:"timeout_s"`
	MoreMs     int `json:"more_ms"`
}

// One transactional producer, and one member of a group where it is to move records.
var (
	producer *kgo.Client
	session  *kgo.GroupTransactSession
)

func initTransactions(s step) (result, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(a.Bootstrap, ",")...), kgo.FetchMaxWait(200 * time.Millisecond), kgo.TransactionalID(s.ID),
		kgo.TransactionTimeout(time.Duration(s.TimeoutMs) * time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	var err error
	if s.Source != "" {
		session, err = kgo.NewGroupTransactSession(append(options, kgo.ConsumerGroup(s.Group), kgo.ConsumeTopics(s.Source),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond))...)
		if err == nil {
			producer = session.Client()
		}
	} else {
		producer, err = kgo.NewClient(options...)
	}
	if err != nil {
		return nil, err
	}
	// It asks for its producer id when it first needs it.
	_, _, err = producer.ProducerID(context.Background())
	return nil, err
}

func begin(step) (result, error) {
	if session != nil {
		return nil, session.Begin()
	}
	return nil, producer.BeginTransaction()
}

func send(s step) (result, error) {
	r := &kgo.Record{Topic: s.Topic, Partition: s.Partition, Value: []byte(s.Value)}
	err := producer.ProduceSync(context.Background(), r).FirstErr()
	return result{"offset": r.Offset}, err
}

func move(s step) (result, error) {
	values := []string{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for len(values) < s.Count && ctx.Err() == nil {
		for _, r := range session.PollRecords(ctx, s.Count-len(values)).Records() {
			values = append(values, string(r.Value))
			session.Produce(ctx, &kgo.Record{Topic: s.Topic, Partition: r.Partition, Value: append(r.Value, '!')}, nil)
		}
	}
	return result{"values": values}, producer.Flush(ctx)
}

func end(how kgo.TransactionEndTry) func(step) (result, error) {
	return func(step) (result, error) {
		ctx := context.Background()
		if session != nil {
			committed, err := session.End(ctx, how)
			if err == nil && committed != bool(how) {
				err = errors.New("the session has aborted it")
			}
			return nil, err
		}
		if how == kgo.TryAbort {
			if err := producer.AbortBufferedRecords(ctx); err != nil {
				return nil, err
			}
		}
		return nil, producer.EndTransaction(ctx, how)
	}
}

func read(s step) (result, error) {
	values, starts := map[int32][]string{}, map[int32]kgo.Offset{}
	for p := int32(0); p < int32(s.Partitions); p++ {
		values[p], starts[p] = []string{}, kgo.NewOffset().AtStart()
	}
	level := kgo.ReadUncommitted()
	if s.Isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: starts}), kgo.FetchIsolationLevel(level))
	defer c.Close()
	until, count := time.Now().Add(time.Duration(s.TimeoutS)*time.Second), 0
	for time.Now().Before(until) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			values[r.Partition] = append(values[r.Partition], string(r.Value))
			if count++; count == s.Count { // what is too much comes soon after
				until = time.Now().Add(time.Duration(s.MoreMs) * time.Millisecond)
			}
		})
		cancel()
	}
	return result{"values": values}, nil
}

func leave(step) (result, error) {
	if session != nil {
		session.Close()
	}
	return nil, nil
}

func transactions() result {
	steps := map[string]func(step) (result, error){"init": initTransactions, "begin": begin, "send": send, "move": move,
		"commit": end(kgo.TryCommit), "abort": end(kgo.TryAbort), "read": read, "leave": leave}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var s step
		check(json.Unmarshal(lines.Bytes(), &s))
		found, err := steps[s.Do](s)
		if found == nil {
			found = result{}
		}
		if found["ok"] = err == nil; err != nil {
			found["error"] = err.Error()
		}
		text, err := json.Marshal(found)
		check(err)
		fmt.Println(string(text))
	}
	return result{}
}
