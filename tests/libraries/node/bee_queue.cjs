// Runs jobs through Bee-Queue: bee_queue.cjs PORT [PREFIX].
"use strict";
const Queue = require("bee-queue");
const { port, prefix, until, run } = require("./talk.cjs");

run(async () => {
  const options = { redis: { host: "127.0.0.1", port }, activateDelayedJobs: true, ...(prefix ? { prefix } : {}) };
  const quiet = new Queue("work", { ...options, isWorker: false, getEvents: false });
  const queue = new Queue("work", options);
  await queue.ready();
  const heard = [];
  queue.on("job succeeded", (id, result) => heard.push(`succeeded ${result}`));
  queue.on("job failed", () => heard.push("failed"));
  queue.on("job progress", (id, progress) => heard.push(`progress ${progress}`));
  queue.process(async (job) => {
    job.reportProgress(50);
    if (job.data < 0) throw new Error("bad");
    return job.data * 2;
  });
  await quiet.createJob(1).save();
  await quiet.createJob(-1).save();
  await queue.createJob(2).delayUntil(Date.now() + 200).save();
  await until("all events", () => heard.length === 6);
  await queue.destroy();
  await quiet.close();
  await queue.close();
  return heard.sort();
});
