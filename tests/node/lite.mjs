// Sends three messages to each of two lite topics, and prints those of one that a consumer gets.
import { ConsumeResult, LitePushConsumerBuilder, Producer } from 'rocketmq-client-nodejs';

const [endpoints, consumerGroup, topic] = process.argv.slice(2);
const options = { endpoints, namespace: '', sslEnabled: false };
const consumer = await new LitePushConsumerBuilder()
  .setClientConfiguration(options)
  .setConsumerGroup(consumerGroup)
  .bindTopic(topic)
  .setMessageListener({
    consume(message) {
      console.log(`got ${message.liteTopic} ${message.body}`);
      return ConsumeResult.SUCCESS;
    },
  })
  .build();
await consumer.subscribeLite('read');
const producer = new Producer(options);
await producer.startup();
for (let n = 0; n < 3; n++) {
  for (const liteTopic of ['read', 'other']) {
    await producer.send({ topic, liteTopic, body: Buffer.from(`${n}`) });
  }
}
