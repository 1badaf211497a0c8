// Runs jobs through Bull, which uses the same names for keys and channels: bull.cjs PORT.  Prints a line of JSON.
"use strict";
const Queue = require("bull");

const JOBS = 20;
const redis = { host: "127.0.0.1", port: Number(process.argv[2]) };

async function until(condition) {
  for (let tries = 0; tries < 600; tries++) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("it did not come true within 30 s");
}

async function main() {
  const queue = new Queue("q", { redis });
  const ran = [];
  const counts = {};
  await queue.pause();
  counts.paused = await queue.getJobCounts();
  counts.pausedJobs = (await queue.getJobs(["paused"])).length;
  await queue.resume();
  for (let number = 0; number < JOBS; number++) await queue.add({ number });
  queue.process(async (job) => {
    ran.push(job.data.number);
    return job.data.number;
  });
  await until(async () => (await queue.getCompletedCount()) === JOBS);
  await queue.pause();
  await queue.add({ number: JOBS });
  counts.pausedAgain = await queue.getJobCounts();
  await queue.resume();
  await until(async () => (await queue.getCompletedCount()) === JOBS + 1);
  counts.end = await queue.getJobCounts();
  await queue.close();
  console.log(JSON.stringify({ ran, counts }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
