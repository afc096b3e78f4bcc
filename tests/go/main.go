// What the official Go client expects of a broker: goclient NAMESRV BROKER RUN [CHECKS] prints a JSON line a check,
// and ends with 1 when one failed. RUN makes the names of topics and groups its own.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const count = 60

// Only a hang reaches it, as BOUND_S of tests/waiting.py.
const bound = 5 * time.Minute

var namesrv []string
var failed bool

func report(check string, err error) {
	line := map[string]any{"check": check, "ok": err == nil}
	if err != nil {
		line["failed"] = err.Error()
		failed = true
	}
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

// within asks until it holds.
func within(what func() error) error {
	end := time.Now().Add(bound)
	for {
		err := what()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func body(i int) string { return fmt.Sprintf("go message %d 消息", i) }

func produce(topic string) error {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithRetry(2),
		producer.WithGroupName("go-makers"), producer.WithSendMsgTimeout(10*time.Second),
		producer.WithCredentials(credentials))
	if err != nil {
		return err
	}
	if err = p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	for i := 0; i < count; i++ {
		m := primitive.NewMessage(topic, []byte(body(i))).WithTag([]string{"A", "B"}[i%2])
		m.WithKeys([]string{fmt.Sprintf("go-%d", i)}).WithProperty("n", fmt.Sprint(i))
		switch {
		case i < 20:
			r, err := p.SendSync(context.Background(), m)
			if err != nil {
				return err
			}
			if r.Status != primitive.SendOK || r.OffsetMsgID == "" {
				return fmt.Errorf("send result %s", r)
			}
		case i < 40:
			done := make(chan error, 1)
			err := p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, e error) { done <- e }, m)
			if err != nil {
				return err
			}
			if err = <-done; err != nil {
				return err
			}
		default:
			if err := p.SendOneWay(context.Background(), m); err != nil {
				return err
			}
		}
	}
	var batch []*primitive.Message
	for i := 0; i < 8; i++ {
		batch = append(batch, primitive.NewMessage(topic, []byte(fmt.Sprintf("batch %d", i))))
	}
	_, err = p.SendSync(context.Background(), batch...)
	return err
}

// Of the environment; empty: requests are not signed.
var credentials = primitive.Credentials{
	AccessKey: os.Getenv("ROCKETMQ_ACCESS_KEY"),
	SecretKey: os.Getenv("ROCKETMQ_SECRET_KEY"),
}

// gather is a push consumer; which messages it got, sorted, once there are `want`. One may come twice: a producer and a
// consumer that a busy machine holds up repeat, and nothing of RocketMQ forbids it.
func gather(topic, group, tags string, want int, options ...consumer.Option) ([]string, error) {
	var mutex sync.Mutex
	seen := map[string]bool{}
	options = append([]consumer.Option{consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials)}, options...)
	c, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	err = c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags},
		func(_ context.Context, list ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			mutex.Lock()
			defer mutex.Unlock()
			for _, m := range list {
				seen[string(m.Body)] = true
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return nil, err
	}
	if err = c.Start(); err != nil {
		return nil, err
	}
	defer c.Shutdown()
	err = within(func() error {
		mutex.Lock()
		defer mutex.Unlock()
		if len(seen) < want {
			return fmt.Errorf("%d of %d messages came", len(seen), want)
		}
		return nil
	})
	time.Sleep(300 * time.Millisecond)
	mutex.Lock()
	defer mutex.Unlock()
	var got []string
	for text := range seen {
		got = append(got, text)
	}
	sort.Strings(got)
	if err == nil && len(got) != want {
		err = fmt.Errorf("%d messages came, %d were to: %s", len(got), want, strings.Join(got, ", "))
	}
	return got, err
}

// pull reads every queue by hand.
func pull(topic, group string) error {
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	if err = c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	defer c.Shutdown()
	seen := map[string]bool{}
	return within(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		r, err := c.Poll(ctx, time.Second)
		if err == nil {
			for _, m := range r.GetMsgList() {
				seen[string(m.Body)] = true
			}
			c.ACK(context.Background(), r, consumer.ConsumeSuccess)
		}
		if len(seen) < count+8 {
			return fmt.Errorf("%d of %d messages were pulled", len(seen), count+8)
		}
		return nil
	})
}

func retry(topic, group string) error {
	var mutex sync.Mutex
	var tries []int32
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, list ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, m := range list {
			if string(m.Body) == body(7) {
				tries = append(tries, m.ReconsumeTimes)
				if m.ReconsumeTimes == 0 {
					return consumer.ConsumeRetryLater, nil
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	defer c.Shutdown()
	return within(func() error {
		mutex.Lock()
		defer mutex.Unlock()
		for _, times := range tries {
			if times == 1 {
				return nil
			}
		}
		return fmt.Errorf("reconsume times of the tries: %v", tries)
	})
}

func administer(topic string) error {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return err
	}
	defer a.Close()
	list, err := a.FetchAllTopicList(context.Background())
	if err != nil {
		return err
	}
	for _, name := range list.TopicList {
		if name == topic {
			return nil
		}
	}
	return fmt.Errorf("%s is not among the topics %v", topic, list.TopicList)
}

func create(topic, broker string) error {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return err
	}
	defer a.Close()
	return a.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker))
}

func main() {
	if os.Getenv("GO_LOG") == "" {
		rlog.SetLogLevel("fatal")
	}
	namesrv = []string{os.Args[1]}
	broker, run := os.Args[2], os.Args[3]
	topic := "go-" + run
	report("create", create(topic, broker))
	report("admin", within(func() error { return administer(topic) }))
	report("produce", produce(topic))
	checks := map[string]func() error{
		"push": func() error { _, err := gather(topic, "go-push-"+run, "*", count+8); return err },
		"push-tag": func() error {
			got, err := gather(topic, "go-tag-"+run, "A", count/2)
			if err == nil && got[0] != body(0) {
				err = fmt.Errorf("got %s", got[0])
			}
			return err
		},
		"push-orderly": func() error {
			_, err := gather(topic, "go-order-"+run, "*", count+8, consumer.WithConsumerOrder(true))
			return err
		},
		"broadcasting": func() error {
			_, err := gather(topic, "go-broad-"+run, "*", count+8, consumer.WithConsumerModel(consumer.BroadCasting))
			return err
		},
		"pull":  func() error { return pull(topic, "go-pull-"+run) },
		"retry": func() error { return retry(topic, "go-retry-"+run) },
	}
	if len(os.Args) > 4 { // the checks to run, with commas
		for name := range checks {
			if !strings.Contains(","+os.Args[4]+",", ","+name+",") {
				delete(checks, name)
			}
		}
	}
	var all sync.WaitGroup
	var mutex sync.Mutex
	for name, check := range checks {
		all.Add(1)
		go func(name string, check func() error) {
			defer all.Done()
			err := check()
			mutex.Lock()
			defer mutex.Unlock()
			report(name, err)
		}(name, check)
	}
	all.Wait()
	if failed {
		os.Exit(1)
	}
}
