// The client of Node (ali-ons): sends COUNT messages, takes those tagged "odd" by push, and has the
// first of them come again. Prints one JSON line. Arguments: NAMESRV TOPIC GROUP COUNT.
'use strict';

const { Consumer, Producer, Message } = require('ali-ons');

const [nameSrv, topic, group, count] = process.argv.slice(2);
const common = {
  nameSrv,
  httpclient: {}, // asked for addresses of name servers where none are given
  logger: { info() {}, warn() {}, debug() {}, error() {} },
  pollNameServerInteval: 500,
  rebalanceInterval: 500,
  persistConsumerOffsetInterval: 200,
};

async function main() {
  const producer = new Producer({ ...common, producerGroup: 'node-senders' });
  await producer.ready();
  const sent = [];
  for (let n = 0; n < Number(count); n++) {
    const message = new Message(topic, n % 2 ? 'odd' : 'even', `body ${n}`);
    message.keys = [`key-${n}`];
    sent.push((await producer.send(message)).sendStatus);
  }

  const consumer = new Consumer({
    ...common, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', () => {}); // the retry topic has no route until the broker has heard of us
  const got = [];
  let refused = null;
  consumer.subscribe(topic, 'odd', async message => {
    const body = message.body.toString();
    if (refused === null) {
      refused = body;
      return Consumer.ACTION_RETRY;
    }
    got.push({ body, keys: message.keys, tags: message.tags, times: message.reconsumeTimes });
  });
  while (got.length < Number(count) / 2) await new Promise(done => setTimeout(done, 50));
  await consumer.close();
  await producer.close();
  console.log(JSON.stringify({ sent, got, refused }));
}

main().then(() => process.exit(0), failed => {
  console.error(failed);
  process.exit(1);
});
