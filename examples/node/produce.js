// Sends messages to a topic: node produce.js TOPIC COUNT. The endpoints come from LEDGERMQ_ENDPOINTS.
'use strict';
const { Producer } = require('rocketmq-client-nodejs');

async function main() {
  const [topic = 'orders', count = '3'] = process.argv.slice(2);
  const endpoints = process.env.LEDGERMQ_ENDPOINTS || '127.0.0.1:8081';
  const producer = new Producer({ endpoints, namespace: '', topics: [topic] });
  await producer.startup();
  for (let number = 1; number <= Number(count); number++) {
    const message = { topic, tag: 'example', keys: [`order-${number}`], body: Buffer.from(`order ${number}`) };
    // Resolves when the message is on stable storage on a majority of the replicas.
    const receipt = await producer.send(message);
    console.log(`sent ${receipt.messageId} at offset ${receipt.offset}`);
  }
  await producer.shutdown();
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
