// Receives and acknowledges COUNT messages of a topic: node consume.js TOPIC GROUP COUNT. The endpoints come from LEDGERMQ_ENDPOINTS.
'use strict';
const { SimpleConsumer } = require('rocketmq-client-nodejs');

async function main() {
  const [topic = 'orders', consumerGroup = 'billing', count = '3'] = process.argv.slice(2);
  const endpoints = process.env.LEDGERMQ_ENDPOINTS || '127.0.0.1:8081';
  const subscriptions = new Map([[topic, 'example']]);
  const consumer = new SimpleConsumer({ endpoints, namespace: '', consumerGroup, subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  for (let left = Number(count); left > 0;) {
    // Each message is leased for 30 seconds: what is not acknowledged by then comes again.
    for (const message of await consumer.receive(Math.min(left, 16), 30_000)) {
      console.log(`received ${message.messageId}: ${message.body.toString()}`);
      await consumer.ack(message);
      left--;
    }
  }
  await consumer.shutdown();
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
