// Runs jobs through BullMQ: bullmq.cjs PORT [PREFIX].
"use strict";
const { Queue, QueueEvents, Worker } = require("bullmq");
const { port, prefix, until, run } = require("./talk.cjs");

run(async () => {
  const options = { connection: { host: "127.0.0.1", port }, ...(prefix ? { prefix } : {}) };
  const heard = [];
  const queue = new Queue("work", options);
  const events = new QueueEvents("work", options);
  await events.waitUntilReady();
  for (const name of ["completed", "failed"]) events.on(name, () => heard.push(name));
  const worker = new Worker("work", async (job) => (job.name === "bad" ? Promise.reject(new Error("bad")) : job.data * 2), options);
  const results = [];
  for (const number of [1, 2, 3]) results.push(await (await queue.add("good", number)).waitUntilFinished(events));
  await queue.add("bad", 0);
  await queue.add("late", 4, { delay: 100 });
  await queue.pause();
  await queue.resume();
  await until("all events", () => heard.length === 5);
  const counts = await queue.getJobCounts("completed", "failed", "wait", "delayed");
  await worker.close();
  await events.close();
  await queue.obliterate({ force: true });
  await queue.close();
  return { results, heard: heard.sort(), counts };
});
