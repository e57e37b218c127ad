// node look.js URL: what headless Chromium shows of examples/activity/page.html once both plots have something, as JSON.
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const errors = [];
const browser = await puppeteer.launch({
  args: chromium.args,
  executablePath: await chromium.executablePath(),
  headless: "shell",
});
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  await page.goto(process.argv[2]);
  await page.waitForFunction(
    () => document.querySelector("#rates polyline")?.points.numberOfItems > 2 && document.querySelector("#trend rect"),
    { timeout: 30000 },
  );
  const rates = await page.$$eval("#rates text", (found) => found.map((each) => each.textContent));
  const lines = await page.$$eval("#rates polyline", (found) => found.map((each) => each.points.numberOfItems));
  const trend = await page.$$eval("#trend text", (found) => found.map((each) => each.textContent));
  const bars = await page.$$eval("#trend rect", (found) => found.map((each) => each.width.baseVal.value));
  console.log(JSON.stringify({ rates, lines, trend, bars, errors }));
} finally {
  await browser.close();
}
