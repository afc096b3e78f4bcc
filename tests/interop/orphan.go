// A producer of RocketMQ 5's official Go client. With `half` it sends one that nobody commits; with
// `check` it commits what it is asked about. Both stay until they are killed.
//
//	orphan half|check ENDPOINT TOPIC
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq_client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	what, endpoint, topic := os.Args[1], os.Args[2], os.Args[3]
	check := func(msg *rmq_client.MessageView) rmq_client.TransactionResolution {
		if what == "half" {
			return rmq_client.UNKNOWN
		}
		fmt.Println("checked", string(msg.GetBody()))
		return rmq_client.COMMIT
	}
	producer, err := rmq_client.NewProducer(
		&rmq_client.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{}},
		rmq_client.WithTransactionChecker(&rmq_client.TransactionChecker{Check: check}),
		rmq_client.WithTopics(topic),
	)
	if err != nil {
		log.Fatal(err)
	}
	if err = producer.Start(); err != nil {
		log.Fatal(err)
	}
	if what == "half" {
		msg := &rmq_client.Message{Topic: topic, Body: []byte("of-go")}
		if _, err = producer.SendWithTransaction(context.TODO(), msg, producer.BeginTransaction()); err != nil {
			log.Fatal(err)
		}
		fmt.Println("half of-go")
	}
	time.Sleep(time.Hour)
}
