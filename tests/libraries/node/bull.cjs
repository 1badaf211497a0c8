// Runs jobs through Bull, with global events: bull.cjs PORT [PREFIX].
"use strict";
const Queue = require("bull");
const { port, prefix, until, run } = require("./talk.cjs");

run(async () => {
  const options = { redis: { host: "127.0.0.1", port }, ...(prefix ? { prefix } : {}) };
  const queue = new Queue("work", options);
  const done = [];
  for (const number of [1, 2, 3]) await queue.add(number); // nobody hears of these
  const watcher = new Queue("work", options);
  watcher.on("global:completed", (id, result) => done.push(Number(result)));
  await watcher.isReady();
  await new Promise((resolve) => setTimeout(resolve, 200)); // whatever is handed over comes before the work begins
  const heardBefore = done.length;
  queue.process(async (job) => job.data * 2);
  await until("all jobs", () => done.length === 3);
  await queue.pause();
  await queue.resume();
  const counts = await queue.getJobCounts();
  await queue.obliterate({ force: true });
  await queue.close();
  await watcher.close();
  return { done: done.sort(), heardBefore, counts };
});
