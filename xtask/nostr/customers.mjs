// Customers that nobody here wrote: nostr-tools and NDK ask a running `candle-dvm serve` for jobs, in the open and encrypted.
// usage: [PROMPT=…] [TOKENS=16] node customers.mjs RELAY PROVIDER (hexadecimal) [strangers-are-refused]. The relay has to ask who they are (NIP-42), and is
// told. The exit code is 0 if every job had a result, and, if that is said, whoever does not answer was refused.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages lie where the step installed them, not beside this file.
const require = createRequire(pathToFileURL(`${process.cwd()}/package.json`));
globalThis.WebSocket ??= require("ws");
const { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } = require("nostr-tools/pure");
const { Relay } = require("nostr-tools/relay");
const nip04 = require("nostr-tools/nip04");
const nip44 = require("nostr-tools/nip44");
const NDK = require("@nostr-dev-kit/ndk");

const [relayUrl, provider, strangers] = process.argv.slice(2);
const PROMPT = process.env.PROMPT ?? "fn main() {";
const INPUT = ["i", PROMPT, "text"];
const TOKENS = process.env.TOKENS ?? "16";
const PARAM = ["param", "max_tokens", TOKENS];
const TIMEOUT = 120_000;

const inTime = (what, promise) =>
  Promise.race([
    promise,
    new Promise((_, fail) => setTimeout(() => fail(new Error(`${what}: no result in time`)), TIMEOUT)),
  ]);

// These relays have no answer for those that they know now, and nostr-tools waits for one: their logs are what tells.
async function authenticate(relay, key) {
  const challenged = async () => {
    while (!relay.challenge) await new Promise((later) => setTimeout(later, 20));
  };
  await inTime("nostr-tools, challenge", challenged());
  relay.auth(async (event) => finalizeEvent(event, key)).catch((error) => {
    if (!/timed out|closed by us/.test(error.message)) throw error;
  });
  // It signs first, and sends then.
  await new Promise((later) => setTimeout(later, 20));
}

const now = () => Math.floor(Date.now() / 1000);

async function withNostrTools(scheme) {
  const key = generateSecretKey();
  const conversation = nip44.getConversationKey(key, provider);
  const schemes = {
    plain: null,
    nip04: {
      encrypt: (text) => nip04.encrypt(key, provider, text),
      decrypt: (text) => nip04.decrypt(key, provider, text),
    },
    nip44: {
      encrypt: (text) => nip44.encrypt(text, conversation),
      decrypt: (text) => nip44.decrypt(text, conversation),
    },
  };
  const cipher = schemes[scheme];
  const request = { kind: 5050, created_at: now(), tags: [INPUT, PARAM], content: "" };
  if (cipher) {
    request.content = await cipher.encrypt(JSON.stringify(request.tags));
    request.tags = [["p", provider], ["encrypted"]];
  }
  const job = finalizeEvent(request, key);
  const relay = await Relay.connect(relayUrl);
  await authenticate(relay, key);
  const result = new Promise((done) => {
    const filter = { kinds: [6050], "#e": [job.id], "#p": [getPublicKey(key)] };
    relay.subscribe([filter], { onevent: done });
  });
  await relay.publish(job);
  const event = await inTime(`nostr-tools, ${scheme}`, result);
  relay.close();
  if (!verifyEvent(event) || event.pubkey !== provider) throw new Error("not the provider's event");
  return cipher ? cipher.decrypt(event.content) : event.content;
}

async function withNdk(encrypted) {
  const signer = NDK.NDKPrivateKeySigner.generate();
  const ndk = new NDK.default({ explicitRelayUrls: [relayUrl], signer, enableOutboxModel: false });
  const signIn = NDK.NDKRelayAuthPolicies.signIn({ ndk, signer });
  const signed = new Promise((done) => {
    ndk.relayAuthDefaultPolicy = async (relay, challenge) => {
      const event = await signIn(relay, challenge);
      // It goes out when this function has returned.
      setTimeout(done, 20);
      return event;
    };
  });
  await ndk.connect(5000);
  // A job that is refused before the relay knows us is not sent again.
  await inTime("NDK, challenge", signed);
  const request = new NDK.NDKDVMRequest(ndk, { kind: 5050, content: "", tags: [] });
  request.addInput(PROMPT, "text");
  request.addParam("max_tokens", TOKENS);
  request.output = "text/plain";
  const user = ndk.getUser({ pubkey: provider });
  if (encrypted) await request.encryption(user, signer);
  else request.dvm = user;
  await request.sign();
  let feedback = 0;
  const result = new Promise((done, fail) => {
    const filter = { kinds: [6050, 7000], "#e": [request.id] };
    const subscription = ndk.subscribe(filter, { closeOnEose: false });
    subscription.on("event", async (event) => {
      try {
        if (event.kind === 7000) {
          await NDK.NDKDVMJobFeedback.from(event);
          feedback += 1;
          return;
        }
        const read = NDK.NDKDVMJobResult.from(event);
        if (read.jobRequestId !== request.id) throw new Error("the result names another job");
        if (encrypted) await read.decrypt(user, signer);
        done(read.result);
      } catch (error) {
        fail(error);
      }
    });
  });
  await request.publish();
  const text = await inTime(`NDK, encrypted: ${encrypted}`, result);
  if (feedback === 0) throw new Error("NDK: no feedback");
  return text;
}

async function asStranger() {
  const job = { kind: 5050, created_at: now(), tags: [INPUT, PARAM], content: "" };
  const relay = await Relay.connect(relayUrl);
  const refused = relay.publish(finalizeEvent(job, generateSecretKey())).then(
    () => "nothing",
    (error) => error.message,
  );
  const reason = await inTime("a stranger", refused);
  relay.close();
  if (!reason.includes("not authenticated")) throw new Error(`a stranger is refused for ${reason}`);
}

if (strangers === "strangers-are-refused") await asStranger();
const texts = [];
for (const scheme of ["plain", "nip04", "nip44"]) texts.push(await withNostrTools(scheme));
for (const encrypted of [false, true]) texts.push(await withNdk(encrypted));
// The likeliest tokens each time, so everybody gets the same.
for (const text of texts) {
  if (!text || text !== texts[0]) throw new Error(`differs: ${JSON.stringify(texts)}`);
}
console.log(`${texts.length} customers, each with ${JSON.stringify(texts[0])}`);
process.exit(0);
