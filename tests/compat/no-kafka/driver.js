// no-kafka 3.4: the scenarios of tests/compat/README.md. Produce 1 and Fetch 0, so magic 0.
"use strict";
const Kafka = require("no-kafka");
const { record, Checksum, Seen, main, sleep, a } = require("../records");

const CODECS = { none: Kafka.COMPRESSION_NONE, gzip: Kafka.COMPRESSION_GZIP, snappy: Kafka.COMPRESSION_SNAPPY };
// What compresses beside it reads a buffer that is written again meanwhile: wrong bytes, against Kafka too.
const options = { connectionString: a.bootstrap, logger: { logLevel: 1 }, idleTimeout: 10, asyncCompression: false };

async function connected(Class, more) {
  const one = new Class({ ...options, ...more });
  await one.init();
  return one;
}

async function partitionsOf(one) {
  await one.client.updateMetadata([a.topic]);
  return one.client.getTopicPartitions(a.topic).then((found) => found.map(({ partitionId }) => partitionId));
}

async function produce() {
  const producer = await connected(Kafka.Producer, { requiredAcks: a.acks, retries: { attempts: 100, delay: { min: 200, max: 200 } } });
  const checksum = new Checksum();
  let acked = 0;
  const ids = await partitionsOf(producer);
  for (let first = a.first; first < a.first + a.count; first += 1000) {
    const messages = [];
    for (let i = first; i < Math.min(first + 1000, a.first + a.count); i++) {
      messages.push({ topic: a.topic, partition: ids[i % ids.length], message: record(i, a.size, a.nulls) });
    }
    const errors = (await producer.send(messages, { codec: CODECS[a.codec] })).filter(({ error }) => error);
    if (errors.length) throw errors[0].error;
    acked += messages.length;
    for (const { message } of messages) checksum.add(message.key, message.value);
    if (a.pause_ms) await sleep(a.pause_ms);
  }
  return { acked, checksum: String(checksum) };
}

async function consume() {
  const consumer = await connected(Kafka.SimpleConsumer, { maxWaitTime: 100 });
  const seen = new Seen();
  await new Promise((resolve, reject) => {
    setTimeout(resolve, a.timeout_s * 1000).unref();
    const handler = async (messages, topic, partition) => {
      for (const { offset, message } of messages) seen.add(partition, offset, message.key, message.value);
      if (seen.count >= a.count) resolve();
    };
    partitionsOf(consumer).then((ids) => Promise.all(ids.map((id) => consumer.subscribe(a.topic, id, { time: Kafka.EARLIEST_OFFSET }, handler)))).catch(reject);
  });
  return seen.told();
}

async function group() {
  const distinct = new Set();
  const read = [0, 0];
  const deadline = Date.now() + a.timeout_s * 1000;
  const start = async (number) => {
    const member = new Kafka.GroupConsumer({ ...options, groupId: a.group, sessionTimeout: 6000, heartbeatTimeout: 300, startingOffset: Kafka.EARLIEST_OFFSET, maxBytes: 8192, maxWaitTime: 100 });
    await member.init({
      subscriptions: [a.topic],
      handler: async (messages, topic, partition) => {
        for (const { offset } of messages) distinct.add(`${partition}:${offset}`);
        read[number] += messages.length;
        await member.commitOffset({ topic, partition, offset: messages[messages.length - 1].offset }).catch(() => {}); // a rebalance came between
        await sleep(10); // leave something for the other member
      },
    });
    return member;
  };
  const first = await start(0);
  while (distinct.size < a.count / 10 && Date.now() < deadline) await sleep(5);
  const second = await start(1);
  while ((read[1] === 0 || distinct.size < a.count / 2) && Date.now() < deadline) await sleep(5);
  await first.end();
  while (distinct.size < a.count && Date.now() < deadline) await sleep(5);
  await sleep(500);
  const ids = await partitionsOf(second);
  const found = await second.fetchOffset(ids.map((partition) => ({ topic: a.topic, partition })));
  await second.end();
  return { members: read, distinct: distinct.size, committed: found.reduce((sum, { offset }) => sum + Math.max(offset, 0), 0) };
}

async function seek() {
  const consumer = await connected(Kafka.SimpleConsumer, { maxWaitTime: 100 });
  const at = await new Promise((resolve, reject) => {
    consumer.subscribe(a.topic, a.partition, { offset: a.offset }, async (messages) => resolve(messages[0].offset)).catch(reject);
  });
  const ask = (time) => consumer.offset(a.topic, a.partition, time);
  return { at_offset: at, by_time: null, earliest: await ask(Kafka.EARLIEST_OFFSET), latest: await ask(Kafka.LATEST_OFFSET) };
}

async function limits() {
  const producer = await connected(Kafka.Producer, {});
  const [{ error }] = await producer.send({ topic: a.topic, partition: 0, message: { value: Buffer.alloc(a.size, "x") } });
  return { ok: !error, error: error ? error.code || error.name : null };
}

main({ produce, consume, group, seek, limits });
