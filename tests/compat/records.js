// The records and checksums that tests/compat/README.md describes, for the drivers of old clients written in JavaScript.
"use strict";
const { createHash } = require("crypto");
const MASK = (1n << 64n) - 1n;

function record(i, size, nulls) {
  const digest = createHash("sha256").update(String(i)).digest("hex");
  const value = (`${i}:` + digest.repeat(Math.ceil(size / 64))).slice(0, size);
  return { key: nulls && i % 7 === 0 ? null : `k${i}`, value: nulls && i % 11 === 0 && i % 7 !== 0 ? null : value };
}

class Checksum {
  total = 0n;
  add(key, value) {
    const digest = createHash("sha256");
    for (const part of [key, value]) digest.update(part === null || part === undefined ? "~" : part).update("\n");
    this.total = (this.total + digest.digest().readBigUInt64BE(0)) & MASK;
  }
  toString() {
    return String(this.total);
  }
}

// What has been read: how much, its checksum, and the order in each partition.
class Seen {
  count = 0;
  checksum = new Checksum();
  partitions = {};
  add(partition, offset, key, value) {
    this.count++;
    this.checksum.add(key, value);
    const seen = (this.partitions[partition] ||= [offset, offset - 1, true]);
    seen[2] = seen[2] && offset > seen[1];
    seen[1] = offset;
  }
  told() {
    return { count: this.count, checksum: String(this.checksum), partitions: this.partitions };
  }
}

function main(scenarios) {
  scenarios[process.argv[2]]().then(
    (result) => { console.log(JSON.stringify(result)); process.exit(0); },
    (error) => { console.error(error); process.exit(1); },
  );
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

module.exports = { record, Checksum, Seen, main, sleep, a: JSON.parse(process.argv[3]) };
