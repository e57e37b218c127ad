// franz-go: the scenarios of tests/compat/README.md.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type arguments struct {
	Bootstrap   string
	Topic       string
	First       int
	Count       int
	Size        int
	Codec       string
	Headers     bool
	Nulls       bool
	Acks        int
	PauseMs     int `json:"pause_ms"`
	TimeoutS    int `json:"timeout_s"`
	Group       string
	Partition   int32
	Offset      int64
	TimestampMs int64 `json:"timestamp_ms"`
	Assignor    string
	Static      bool
	Prefix      string
}

type result = map[string]any

var a arguments

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(a.Bootstrap, ",")...), kgo.FetchMaxWait(200 * time.Millisecond)}, options...)...)
	check(err)
	return c
}

func record(i int) *kgo.Record {
	digest := sha256.Sum256([]byte(strconv.Itoa(i)))
	text := hex.EncodeToString(digest[:])
	value := (strconv.Itoa(i) + ":" + strings.Repeat(text, a.Size/64+1))[:a.Size]
	r := &kgo.Record{Topic: a.Topic}
	if !a.Nulls || i%7 != 0 {
		r.Key = []byte("k" + strconv.Itoa(i))
	}
	if !a.Nulls || i%11 != 0 || i%7 == 0 {
		r.Value = []byte(value)
	}
	if a.Headers {
		r.Headers = []kgo.RecordHeader{{Key: "i", Value: []byte(strconv.Itoa(i))}, {Key: "empty", Value: nil}}
	}
	return r
}

func fingerprint(r *kgo.Record) uint64 {
	or := func(b []byte) []byte {
		if b == nil {
			return []byte("~")
		}
		return b
	}
	h := sha256.New()
	h.Write(or(r.Key))
	h.Write([]byte("\n"))
	h.Write(or(r.Value))
	h.Write([]byte("\n"))
	for _, header := range r.Headers {
		h.Write([]byte(header.Key + "="))
		h.Write(or(header.Value))
		h.Write([]byte("\n"))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

func produce() result {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[a.Codec]), kgo.ProducerLinger(20 * time.Millisecond), kgo.RecordDeliveryTimeout(time.Minute)}
	switch a.Acks {
	case 0:
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case 1:
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	c := client(options...)
	var acked, total atomic.Uint64
	for i := a.First; i < a.First+a.Count; i++ {
		r := record(i)
		mark := fingerprint(r)
		c.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			if err == nil {
				acked.Add(1)
				total.Add(mark)
			}
		})
		if i%1000 == 0 {
			time.Sleep(time.Duration(a.PauseMs) * time.Millisecond)
		}
	}
	check(c.Flush(context.Background()))
	c.Close()
	return result{"acked": acked.Load(), "checksum": strconv.FormatUint(total.Load(), 10)}
}

func consume() result {
	c := client(kgo.ConsumeTopics(a.Topic), kgo.ConsumerGroup(fmt.Sprintf("read-%d", time.Now().UnixNano())), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	defer c.Close()
	context, cancel := context.WithTimeout(context.Background(), time.Duration(a.TimeoutS)*time.Second)
	defer cancel()
	count, total, partitions := 0, uint64(0), map[string][]any{}
	for count < a.Count && context.Err() == nil {
		c.PollFetches(context).EachRecord(func(r *kgo.Record) {
			count++
			total += fingerprint(r)
			id := strconv.Itoa(int(r.Partition))
			seen, known := partitions[id]
			if !known {
				seen = []any{r.Offset, r.Offset - 1, true}
				partitions[id] = seen
			}
			seen[2] = seen[2].(bool) && r.Offset > seen[1].(int64)
			seen[1] = r.Offset
		})
	}
	return result{"count": count, "checksum": strconv.FormatUint(total, 10), "partitions": partitions}
}

var balancers = map[string]func() kgo.GroupBalancer{
	"range": kgo.RangeBalancer, "roundrobin": kgo.RoundRobinBalancer, "sticky": kgo.StickyBalancer, "cooperative-sticky": kgo.CooperativeStickyBalancer,
}

func group() result {
	var lock sync.Mutex
	distinct := map[string]bool{}
	read := [2]int{}
	size := func(number int) (int, int) {
		lock.Lock()
		defer lock.Unlock()
		return len(distinct), read[number]
	}
	deadline := time.Now().Add(time.Duration(a.TimeoutS) * time.Second)
	member := func(number int) (stop func()) {
		options := []kgo.Opt{kgo.ConsumeTopics(a.Topic), kgo.ConsumerGroup(a.Group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.DisableAutoCommit(), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond)}
		if a.Assignor != "" {
			options = append(options, kgo.Balancers(balancers[a.Assignor]()))
		}
		if a.Static {
			options = append(options, kgo.InstanceID(fmt.Sprintf("member-%d", number)))
		}
		c := client(options...)
		running, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for running.Err() == nil {
				fetches := c.PollRecords(running, 200)
				lock.Lock()
				fetches.EachRecord(func(r *kgo.Record) {
					distinct[fmt.Sprintf("%d:%d", r.Partition, r.Offset)] = true
					read[number]++
				})
				lock.Unlock()
				_ = c.CommitUncommittedOffsets(context.Background())
				time.Sleep(10 * time.Millisecond) // leave something for the other member
			}
		}()
		return func() {
			cancel()
			<-done
			c.Close()
		}
	}
	wait := func(enough func() bool) {
		for !enough() && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	stopFirst := member(0)
	wait(func() bool { all, _ := size(0); return all >= a.Count/10 })
	stopSecond := member(1)
	wait(func() bool { all, second := size(1); return second > 0 && all >= a.Count/2 })
	stopFirst()
	wait(func() bool { all, _ := size(0); return all >= a.Count })
	time.Sleep(300 * time.Millisecond)
	stopSecond()
	c := client()
	defer c.Close()
	offsets, err := kadm.NewClient(c).FetchOffsets(context.Background(), a.Group)
	check(err)
	committed := int64(0)
	offsets.Each(func(o kadm.OffsetResponse) { committed += max(o.At, 0) })
	return result{"members": read, "distinct": len(distinct), "committed": committed}
}

func seek() result {
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.Topic: {a.Partition: kgo.NewOffset().At(a.Offset)}}))
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	at := int64(-1)
	for at < 0 && ctx.Err() == nil {
		for _, r := range c.PollFetches(ctx).Records() {
			at = r.Offset
			break
		}
	}
	admin := kadm.NewClient(c)
	find := func(list kadm.ListedOffsets, err error) int64 {
		check(err)
		o, _ := list.Lookup(a.Topic, a.Partition)
		check(o.Err)
		return o.Offset
	}
	return result{
		"at_offset": at,
		"by_time":   find(admin.ListOffsetsAfterMilli(ctx, a.TimestampMs, a.Topic)),
		"earliest":  find(admin.ListStartOffsets(ctx, a.Topic)),
		"latest":    find(admin.ListEndOffsets(ctx, a.Topic)),
	}
}

func limits() result {
	c := client(kgo.ProducerBatchMaxBytes(100_000_000), kgo.MaxBufferedBytes(200_000_000), kgo.RecordDeliveryTimeout(20*time.Second),
		kgo.BrokerMaxWriteBytes(200_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer c.Close()
	err := c.ProduceSync(context.Background(), &kgo.Record{Topic: a.Topic, Value: make([]byte, a.Size)}).FirstErr()
	if err != nil {
		return result{"ok": false, "error": err.Error()}
	}
	return result{"ok": true, "error": nil}
}

func admin() result {
	topic, ctx := a.Prefix+"-a", context.Background()
	c := client()
	defer c.Close()
	admin := kadm.NewClient(c)
	hour, twoHours := "3600000", "7200000"
	_, err := admin.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": &hour}, topic)
	check(err)
	var duplicate any
	if _, err = admin.CreateTopic(ctx, 3, 1, nil, topic); err != nil {
		var known *kerr.Error
		if errors.As(err, &known) {
			duplicate = known.Message
		}
	}
	listed := func() bool {
		fresh := client() // a client answers from what it knows for a while
		defer fresh.Close()
		topics, err := kadm.NewClient(fresh).ListTopics(ctx)
		check(err)
		return topics.Has(topic)
	}
	created := listed()
	retention := func() string {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		check(err)
		described, err := configs.On(topic, nil)
		check(err)
		for _, config := range described.Configs {
			if config.Key == "retention.ms" {
				return *config.Value
			}
		}
		return ""
	}
	before := retention()
	_, err = admin.UpdatePartitions(ctx, 5, topic)
	check(err)
	_, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &twoHours}}, topic)
	check(err)
	after := retention()
	details, err := admin.ListTopics(ctx, topic)
	check(err)
	partitions := len(details[topic].Partitions)
	manual := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := 0; i < 10; i++ {
		check(manual.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: 0, Value: []byte(strconv.Itoa(i))}).FirstErr())
	}
	manual.Close()
	below := kadm.Offsets{}
	below.AddOffset(topic, 0, 5, -1)
	deletedRecords, err := admin.DeleteRecords(ctx, below)
	check(err)
	low, _ := deletedRecords.Lookup(topic, 0)
	_, err = admin.ListGroups(ctx)
	check(err)
	_, err = admin.DeleteTopics(ctx, topic)
	check(err)
	for left := 100; listed() && left > 0; left-- {
		time.Sleep(100 * time.Millisecond)
	}
	return result{
		"created": created, "partitions": partitions, "retention_before": before, "retention_after": after,
		"low_watermark": low.LowWatermark, "duplicate_error": duplicate, "deleted": !listed(),
	}
}

func main() {
	scenarios := map[string]func() result{"produce": produce, "consume": consume, "group": group, "seek": seek, "limits": limits, "admin": admin, "transactions": transactions}
	for i := 1; i < len(os.Args); i += 2 {
		a = arguments{}
		check(json.Unmarshal([]byte(os.Args[i+1]), &a))
		text, err := json.Marshal(scenarios[os.Args[i]]())
		check(err)
		fmt.Println(string(text))
	}
}
