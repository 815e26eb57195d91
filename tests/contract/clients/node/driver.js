// The unmodified official Node client, one scenario a run: node driver.js SCENARIO ENDPOINTS TOPIC GROUP COUNT TLS. Results are lines NAME=VALUE.
'use strict';
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const [scenario, endpoints, topic, consumerGroup, count, tls] = process.argv.slice(2);
const base = { endpoints, namespace: '', sslEnabled: tls === 'tls' };
const say = (name, value) => console.log(`${name}=${value}`);
const text = message => message.body.toString();
const bodies = messages => messages.map(text).join(',');
const numbered = more => Array.from({ length: Number(count) }, (_, i) => ({ body: Buffer.from(String(i)), ...more(i) }));

async function started(options = {}) {
  const producer = new Producer({ ...base, topics: [topic], ...options });
  await producer.startup();
  return producer;
}

async function sendAll(messages) {
  const producer = await started();
  for (const message of messages) await producer.send({ topic, ...message });
}

let acknowledgements = 1;
const SQL = 2;

async function receive(wanted, tries) {
  const consumer = new SimpleConsumer({ ...base, consumerGroup, subscriptions: new Map([[topic, '*']]), awaitDuration: 2000 });
  await consumer.startup();
  const got = [];
  for (; got.length < wanted && tries > 0; tries--) {
    for (const message of await consumer.receive(1, 10000)) {
      got.push(message);
      for (let i = 0; i < acknowledgements; i++) await consumer.ack(message);
    }
  }
  return got;
}

// Runs a push consumer until `wanted` messages came.
async function listen(wanted, consume) {
  const seen = [];
  await new Promise((resolve, reject) => {
    const messageListener = {
      async consume(message) {
        const [line, result] = consume(message);
        seen.push(line);
        if (seen.length === wanted) resolve();
        return result;
      },
    };
    const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
    new PushConsumer({ ...base, consumerGroup, subscriptions, messageListener }).startup().catch(reject);
  });
  return seen;
}

const scenarios = {
  async several() {
    const topics = topic.split(',');
    const producer = await started({ topics });
    for (const each of topics) say(each, (await producer.send({ topic: each, body: Buffer.from('x') })).messageId);
  },
  async unknown() {
    const producer = await started();
    try {
      await producer.send({ topic: `${topic}-unknown`, body: Buffer.from('x') });
      say('error', 'none');
    } catch (error) {
      say('error', error.name);
      say('code', error.code);
    }
  },
  async twice() {
    await sendAll([{ body: Buffer.from('once') }]);
    acknowledgements = 2;
    say('got', bodies(await receive(1, 15)));
  },
  async large() {
    const producer = await started();
    for (const size of [1, Number(count), 2]) say(`sent-${size}`, (await producer.send({ topic, body: Buffer.alloc(size, 1) })).messageId);
    const consumer = new SimpleConsumer({ ...base, consumerGroup, subscriptions: new Map([[topic, '*']]), awaitDuration: 2000 });
    await consumer.startup();
    const sizes = [];
    let error = '';
    for (let tries = 15; tries > 0 && sizes.length + (error ? 1 : 0) < 3; tries--) {
      try {
        for (const message of await consumer.receive(16, 30000)) {
          sizes.push(message.body.length);
          await consumer.ack(message);
        }
      } catch (thrown) {
        error = `${thrown.name}: ${thrown.message}`;
      }
    }
    say('sizes', sizes.sort((a, b) => a - b).join(','));
    say('error', error);
  },
  async filter() {
    const subscriptions = new Map([[topic, new FilterExpression("a > 1 AND b LIKE 'x%'", SQL)]]);
    const consumer = new SimpleConsumer({ ...base, consumerGroup, subscriptions, awaitDuration: 2000 });
    await consumer.startup();
    say('built', true);
    await consumer.receive(1, 10000).catch(error => say('error', error.message.replaceAll('\n', '|')));
  },
  async roundtrip() {
    const body = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const properties = new Map([['x', '1'], ['y', 'ü']]);
    say('sent', (await (await started()).send({ topic, body, tag: 'tagA', keys: ['k1', 'k2'], properties })).messageId);
    const [got] = await receive(1, 15);
    say('id', got.messageId);
    say('same', got.body.equals(body));
    say('tag', got.tag);
    say('keys', got.keys.join(','));
    say('properties', [...got.properties].map(pair => pair.join(':')).sort().join(','));
    say('attempt', got.deliveryAttempt);
  },
  async push() {
    await sendAll(numbered(() => ({})));
    const seen = await listen(Number(count) + 1, message => {
      const line = `${text(message)}:${message.deliveryAttempt}`;
      return [line, line === '0:1' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS];
    });
    say('seen', seen.sort().join(','));
  },
  async fifo() {
    await sendAll(numbered(i => ({ messageGroup: `g${i % 3}` })));
    say('seen', (await listen(Number(count), message => [`${message.messageGroup}:${text(message)}`, ConsumeResult.SUCCESS])).join(','));
  },
  async delay() {
    const producer = await started();
    const due = Date.now() + 3000;
    const deliveryTimestamp = new Date(due);
    say('kept', (await producer.send({ topic, body: Buffer.from('kept'), deliveryTimestamp })).messageId);
    const recalled = await producer.send({ topic, body: Buffer.from('recalled'), deliveryTimestamp });
    say('wanted', recalled.messageId);
    say('recalled', (await producer.recallMessage(topic, recalled.recallHandle)).messageId);
    const got = await receive(1, 15);
    say('late', Date.now() - due);
    say('got', bodies(got));
    say('after', bodies(await receive(1, 1)));
  },
  async transaction() {
    const asked = [];
    const COMMIT = 1;
    const checker = { async check(message) { asked.push(text(message)); return COMMIT; } };
    const producer = await started({ checker });
    for (const decision of ['commit', 'rollback', 'nothing']) {
      const transaction = producer.beginTransaction();
      await producer.send({ topic, body: Buffer.from(decision) }, transaction);
      if (decision === 'commit') await transaction.commit();
      if (decision === 'rollback') await transaction.rollback();
    }
    say('got', (await receive(2, 15)).map(text).sort().join(','));
    say('asked', asked.join(','));
  },
  async priority() {
    await sendAll([1, 7, 3].map(priority => ({ body: Buffer.from(String(priority)), priority })));
    say('got', bodies(await receive(3, 15)));
  },
  // Sends one message after the other until it is killed, and says when each was acknowledged or failed.
  async steady() {
    const producer = await started();
    for (let number = 0; ; number++) {
      try {
        await producer.send({ topic, body: Buffer.from(String(number)) });
        say('acked', Date.now());
      } catch (error) {
        say('failed', error.name);
      }
      await new Promise(resolve => setTimeout(resolve, 50));
    }
  },
};

scenarios[scenario]().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
