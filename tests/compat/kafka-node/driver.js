// kafka-node 5: the scenarios of tests/compat/README.md. Produce 2 and Fetch 2, so magic 1. That it can be told not to ask for
// versions is of no use: it waits for them all the same.
"use strict";
const { ConsumerGroup, Consumer, HighLevelProducer, KafkaClient, KeyedMessage, Offset } = require("kafka-node");
const { record, Checksum, Seen, main, sleep, a } = require("../records");

const CODECS = { none: 0, gzip: 1, snappy: 2 };
const options = () => ({ kafkaHost: a.bootstrap, connectRetryOptions: { retries: 50, factor: 1, minTimeout: 200 } });
const call = (target, method, ...given) => new Promise((resolve, reject) => {
  target[method](...given, (error, result) => (error ? reject(error instanceof Error ? error : new Error(String(error))) : resolve(result)));
});

async function connected() {
  const client = new KafkaClient(options());
  await new Promise((resolve, reject) => client.once("ready", resolve).once("error", reject));
  client.updateMetadatas(await call(client, "loadMetadataForTopics", [a.topic]));
  return client;
}

const partitionsOf = (client) => Object.keys(client.topicMetadata[a.topic]).map(Number);

async function produce() {
  const client = await connected();
  const producer = new HighLevelProducer(client, { requireAcks: a.acks, ackTimeoutMs: 10000 });
  producer.on("error", () => {});
  const ids = partitionsOf(client);
  const checksum = new Checksum();
  let acked = 0;
  for (let first = a.first; first < a.first + a.count; first += 1000) {
    const payloads = ids.map((partition) => ({ topic: a.topic, partition, attributes: CODECS[a.codec], messages: [] }));
    const sent = [];
    for (let i = first; i < Math.min(first + 1000, a.first + a.count); i++) {
      const { key, value } = record(i, a.size, a.nulls);
      payloads[i % ids.length].messages.push(new KeyedMessage(key, value));
      sent.push([key, value]);
    }
    for (let left = 100; ; left--) {
      try {
        await call(producer, "send", payloads.filter((payload) => payload.messages.length));
        break;
      } catch (error) {
        if (!left) throw error;
        await sleep(200);
      }
    }
    acked += sent.length;
    for (const [key, value] of sent) checksum.add(key, value);
    if (a.pause_ms) await sleep(a.pause_ms);
  }
  return { acked, checksum: String(checksum) };
}

async function consume() {
  const client = await connected();
  const payloads = partitionsOf(client).map((partition) => ({ topic: a.topic, partition, offset: 0 }));
  const consumer = new Consumer(client, payloads, { autoCommit: false, fromOffset: true, encoding: "buffer", keyEncoding: "buffer", fetchMaxWaitMs: 200 });
  const seen = new Seen();
  await new Promise((resolve, reject) => {
    setTimeout(resolve, a.timeout_s * 1000).unref();
    consumer.on("error", reject);
    consumer.on("message", (m) => {
      seen.add(m.partition, m.offset, m.key, m.value);
      if (seen.count >= a.count) resolve();
    });
  });
  return seen.told();
}

async function group() {
  const distinct = new Set();
  const read = [0, 0];
  const deadline = Date.now() + a.timeout_s * 1000;
  const start = (number) => {
    const member = new ConsumerGroup({
      ...options(), groupId: a.group, fromOffset: "earliest", sessionTimeout: 6000, heartbeatInterval: 300, autoCommitIntervalMs: 200, fetchMaxBytes: 8192, encoding: "buffer", keyEncoding: "buffer",
    }, [a.topic]);
    member.on("error", () => {});
    member.on("message", (m) => {
      distinct.add(`${m.partition}:${m.offset}`);
      read[number]++;
      if (read[number] % 200 === 0) { // leave something for the other member
        member.pause();
        setTimeout(() => member.resume(), 20);
      }
    });
    return member;
  };
  const first = start(0);
  while (distinct.size < a.count / 10 && Date.now() < deadline) await sleep(5);
  const second = start(1);
  while ((read[1] === 0 || distinct.size < a.count / 2) && Date.now() < deadline) await sleep(5);
  await call(first, "close", true);
  while (distinct.size < a.count && Date.now() < deadline) await sleep(5);
  await sleep(500);
  await call(second, "close", true);
  const client = await connected();
  const offset = new Offset(client);
  const found = await call(offset, "fetchCommitsV1", a.group, partitionsOf(client).map((partition) => ({ topic: a.topic, partition })));
  return { members: read, distinct: distinct.size, committed: Object.values(found[a.topic]).reduce((sum, one) => sum + Math.max(one, 0), 0) };
}

async function seek() {
  const client = await connected();
  const consumer = new Consumer(client, [{ topic: a.topic, partition: a.partition, offset: a.offset }], { autoCommit: false, fromOffset: true });
  const at = await new Promise((resolve, reject) => consumer.once("message", (m) => resolve(m.offset)).once("error", reject));
  const offset = new Offset(client);
  const ask = async (time) => (await call(offset, "fetch", [{ topic: a.topic, partition: a.partition, time, maxNum: 1 }]))[a.topic][a.partition][0];
  return { at_offset: at, by_time: null, earliest: await ask(-2), latest: await ask(-1) };
}

async function limits() {
  const producer = new HighLevelProducer(await connected());
  try {
    await call(producer, "send", [{ topic: a.topic, partition: 0, messages: [Buffer.alloc(a.size, "x")] }]);
    return { ok: true, error: null };
  } catch (error) {
    return { ok: false, error: error.message };
  }
}

main({ produce, consume, group, seek, limits });
