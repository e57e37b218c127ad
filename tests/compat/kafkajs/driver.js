// kafkajs: the scenarios of tests/compat/README.md.
"use strict";
const { createHash } = require("crypto");
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");
const zlib = require("zlib");

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
const LZ4 = require("kafkajs-lz4");
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec;
if (zlib.zstdCompressSync) {
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => zlib.zstdCompressSync(encoder.buffer),
    decompress: async (buffer) => zlib.zstdDecompressSync(buffer),
  });
}
const TYPES = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
};
const MASK = (1n << 64n) - 1n;
const [scenario, a] = [process.argv[2], JSON.parse(process.argv[3])];
const kafka = new Kafka({ clientId: "compat", brokers: a.bootstrap.split(","), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 20 } });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function record(i) {
  const digest = createHash("sha256").update(String(i)).digest("hex");
  const value = (`${i}:` + digest.repeat(Math.ceil(a.size / 64))).slice(0, a.size);
  return {
    key: a.nulls && i % 7 === 0 ? null : `k${i}`,
    value: a.nulls && i % 11 === 0 && i % 7 !== 0 ? null : value,
    headers: a.headers ? { i: String(i), empty: "" } : {},
  };
}

function fingerprint(key, value, headers) {
  const digest = createHash("sha256");
  for (const part of [key, value]) digest.update(part === null ? "~" : part).update("\n");
  for (const name of Object.keys(headers || {})) digest.update(name).update("=").update(headers[name] === null || headers[name] === undefined ? "~" : headers[name]).update("\n");
  return digest.digest().readBigUInt64BE(0);
}

async function partitionsOf(topic) {
  const client = kafka.admin();
  await client.connect();
  const { topics } = await client.fetchTopicMetadata({ topics: [topic] });
  await client.disconnect();
  return topics[0].partitions.map((each) => each.partitionId);
}

async function produce() {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...(a.idempotent ? { idempotent: true, maxInFlightRequests: 1 } : {}) });
  await producer.connect();
  // It notes by broker what was sent. Where a partition's leader moves to a broker that has answered for the same send,
  // the partition's records are never sent, and count as acknowledged. So an idempotent send is for one partition.
  const partitions = a.idempotent ? await partitionsOf(a.topic) : [undefined];
  let acked = 0;
  let total = 0n;
  for (let first = a.first; first < a.first + a.count; first += 1000) {
    const messages = [];
    const partition = partitions[Math.floor(first / 1000) % partitions.length];
    for (let i = first; i < Math.min(first + 1000, a.first + a.count); i++) messages.push({ ...record(i), partition });
    await producer.send({ topic: a.topic, acks: a.acks, compression: TYPES[a.codec], messages });
    acked += messages.length;
    for (const m of messages) total = (total + fingerprint(m.key, m.value, m.headers)) & MASK;
    if (a.pause_ms) await sleep(a.pause_ms);
  }
  await producer.disconnect();
  return { acked, checksum: String(total) };
}

async function consume() {
  const consumer = kafka.consumer({ groupId: `read-${process.hrtime.bigint()}`, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic: a.topic, fromBeginning: true });
  let count = 0;
  let total = 0n;
  const partitions = {};
  await new Promise((resolve, reject) => {
    setTimeout(resolve, a.timeout_s * 1000).unref();
    consumer.run({
      eachBatchAutoResolve: true,
      eachBatch: async ({ batch }) => {
        for (const m of batch.messages) {
          const offset = Number(m.offset);
          const seen = (partitions[batch.partition] ||= [offset, offset - 1, true]);
          seen[2] = seen[2] && offset > seen[1];
          seen[1] = offset;
          count++;
          total = (total + fingerprint(m.key, m.value, m.headers)) & MASK;
        }
        if (count >= a.count) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  return { count, checksum: String(total), partitions };
}

async function group() {
  const distinct = new Set();
  const read = [0, 0];
  const deadline = Date.now() + a.timeout_s * 1000;
  const start = async (number) => {
    const consumer = kafka.consumer({ groupId: a.group, sessionTimeout: 10000, heartbeatInterval: 500, maxWaitTimeInMs: 200, maxBytesPerPartition: 16384 });
    await consumer.connect();
    await consumer.subscribe({ topic: a.topic, fromBeginning: true });
    await consumer.run({
      autoCommitThreshold: 100,
      eachBatch: async ({ batch, heartbeat }) => {
        for (const m of batch.messages) distinct.add(`${batch.partition}:${m.offset}`);
        read[number] += batch.messages.length;
        await sleep(10); // leave something for the other member
        await heartbeat();
      },
    });
    return consumer;
  };
  const first = await start(0);
  while (distinct.size < a.count / 10 && Date.now() < deadline) await sleep(5);
  const second = await start(1);
  while ((read[1] === 0 || distinct.size < a.count / 2) && Date.now() < deadline) await sleep(5);
  await first.disconnect();
  while (distinct.size < a.count && Date.now() < deadline) await sleep(5);
  await sleep(500);
  await second.disconnect();
  const admin = kafka.admin();
  await admin.connect();
  const [offsets] = await admin.fetchOffsets({ groupId: a.group, topics: [a.topic] });
  await admin.disconnect();
  const committed = offsets.partitions.reduce((sum, p) => sum + Math.max(Number(p.offset), 0), 0);
  return { members: read, distinct: distinct.size, committed };
}

async function seek() {
  const consumer = kafka.consumer({ groupId: `seek-${process.hrtime.bigint()}`, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic: a.topic, fromBeginning: true });
  const at = await new Promise((resolve) => {
    let sought = false;
    consumer.run({
      eachMessage: async ({ message }) => {
        if (sought && Number(message.offset) >= a.offset) resolve(Number(message.offset));
      },
    });
    consumer.on(consumer.events.GROUP_JOIN, () => {
      consumer.seek({ topic: a.topic, partition: a.partition, offset: String(a.offset) });
      sought = true;
    });
  });
  await consumer.disconnect();
  const admin = kafka.admin();
  await admin.connect();
  const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(a.topic, a.timestamp_ms);
  const [{ low, high }] = await admin.fetchTopicOffsets(a.topic);
  await admin.disconnect();
  return { at_offset: at, by_time: Number(offset), earliest: Number(low), latest: Number(high) };
}

async function limits() {
  const producer = kafka.producer({ allowAutoTopicCreation: false, retry: { retries: 1 } });
  await producer.connect();
  try {
    await producer.send({ topic: a.topic, messages: [{ value: Buffer.alloc(a.size, "x") }] });
    return { ok: true, error: null };
  } catch (error) {
    return { ok: false, error: error.type || error.name };
  } finally {
    await producer.disconnect();
  }
}

async function admin() {
  const topic = `${a.prefix}-a`;
  const client = kafka.admin();
  await client.connect();
  const retention = async () => {
    const { resources } = await client.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic, configNames: ["retention.ms"] }] });
    return resources[0].configEntries[0].configValue;
  };
  await client.createTopics({ topics: [{ topic, numPartitions: 3, configEntries: [{ name: "retention.ms", value: "3600000" }] }] });
  let duplicate = null;
  try {
    const made = await client.createTopics({ topics: [{ topic, numPartitions: 3 }] });
    if (!made) duplicate = "TOPIC_ALREADY_EXISTS"; // kafkajs answers false
  } catch (error) {
    duplicate = error.type || error.name;
  }
  const created = (await client.listTopics()).includes(topic);
  const before = await retention();
  await client.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
  await client.alterConfigs({ resources: [{ type: 2, name: topic, configEntries: [{ name: "retention.ms", value: "7200000" }] }], validateOnly: false });
  const after = await retention();
  const partitions = (await client.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: Array.from({ length: 10 }, (_, i) => ({ value: String(i), partition: 0 })) });
  await producer.disconnect();
  await client.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "5" }] });
  const low = Number((await client.fetchTopicOffsets(topic)).find((p) => p.partition === 0).low);
  await client.listGroups();
  await client.deleteTopics({ topics: [topic] });
  let left = 100;
  while ((await client.listTopics()).includes(topic) && left--) await sleep(100);
  const deleted = !(await client.listTopics()).includes(topic);
  await client.disconnect();
  return { created, partitions, retention_before: before, retention_after: after, low_watermark: low, duplicate_error: duplicate, deleted };
}

// The scenario `transactions`: one transactional producer, and one member of a group where it is to move records.
const told = {
  async init(step) {
    told.producer = kafka.producer({ transactionalId: step.id, transactionTimeout: step.timeout_ms, maxInFlightRequests: 1, idempotent: true, retry: { initialRetryTime: 100, retries: 30 } });
    await told.producer.connect();
    // It asks for its producer id at the first transaction only: an empty one makes it.
    await (await told.producer.transaction()).abort();
    if (!step.source) return;
    Object.assign(told, { group: step.group, source: step.source, waiting: [], wake: null });
    told.reader = kafka.consumer({ groupId: step.group, sessionTimeout: 10000, heartbeatInterval: 500, maxWaitTimeInMs: 200 });
    // A member that joins again is given once more what has no committed offset yet, and cannot fence its transaction by
    // its generation (KIP-447): a new process has to go on.
    told.joins = 0;
    told.reader.on(told.reader.events.GROUP_JOIN, () => { told.joins++; if (told.wake) told.wake(); });
    await told.reader.connect();
    await told.reader.subscribe({ topic: step.source, fromBeginning: true });
    // A message is done when it has gone into a transaction: what is behind it waits.
    await told.reader.run({ autoCommit: false, eachMessage: ({ partition, message }) => new Promise((done) => {
      told.waiting.push({ partition, message, done });
      if (told.wake) told.wake();
    }) });
  },
  async begin() { told.transaction = await told.producer.transaction(); },
  async send(step) {
    const [sent] = await told.transaction.send({ topic: step.topic, acks: -1, messages: [{ value: step.value, partition: step.partition }] });
    return { offset: Number(sent.baseOffset) };
  },
  async move(step) {
    const values = [];
    const offsets = {};
    while (values.length < step.count) {
      while (!told.waiting.length && told.joins < 2) await new Promise((resolve) => { told.wake = resolve; });
      if (told.joins > 1) throw new Error("the member has joined its group again");
      const { partition, message, done } = told.waiting.shift();
      values.push(message.value.toString());
      offsets[partition] = String(Number(message.offset) + 1);
      await told.transaction.send({ topic: step.topic, acks: -1, messages: [{ value: `${message.value}!`, partition }] });
      done();
    }
    const partitions = Object.entries(offsets).map(([partition, offset]) => ({ partition: Number(partition), offset }));
    await told.transaction.sendOffsets({ consumerGroupId: told.group, topics: [{ topic: told.source, partitions }] });
    return { values };
  },
  async commit() { await told.transaction.commit(); },
  async abort() { await told.transaction.abort(); },
  async read(step) {
    const consumer = kafka.consumer({ groupId: `read-${process.hrtime.bigint()}`, maxWaitTimeInMs: 100, readUncommitted: step.isolation === "read_uncommitted" });
    await consumer.connect();
    await consumer.subscribe({ topic: step.topic, fromBeginning: true });
    const values = Object.fromEntries(Array.from({ length: step.partitions }, (_, p) => [p, []]));
    let count = 0;
    await new Promise((resolve, reject) => {
      setTimeout(resolve, step.timeout_s * 1000);
      consumer.run({ eachMessage: async ({ partition, message }) => {
        values[partition].push(message.value.toString());
        if (++count === step.count) setTimeout(resolve, step.more_ms); // what is too much comes soon after
      } }).catch(reject);
    });
    await consumer.disconnect();
    return { values };
  },
  async leave() {
    for (const { done } of told.waiting || []) done();
    if (told.reader) await told.reader.disconnect();
  },
};

async function transactions() {
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const step = JSON.parse(line);
    let found;
    try {
      found = { ok: true, ...(await told[step.do](step)) };
    } catch (error) {
      found = { ok: false, error: `${error.name}: ${error.type || ""} ${error.message}` };
    }
    console.log(JSON.stringify(found));
  }
  return {};
}

const scenarios = { produce, consume, group, seek, limits, admin, transactions };
scenarios[scenario]().then(
  (result) => { console.log(JSON.stringify(result)); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
