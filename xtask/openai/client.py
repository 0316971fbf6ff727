"""OpenAI's package of Python as a client of `candle-dvm api`.

    client.py URL MODEL [SECONDS]

With SECONDS, 64 clients then ask at once for as long, and each of their greedy texts has to be the one that the model gave when it was asked
alone.
"""

import asyncio
import sys
import time

import openai


def check(ok, *what):
    if not ok:
        raise AssertionError(" ".join(str(part) for part in what))


def refused(kind, call, part):
    try:
        call()
    except kind as error:
        check(part in str(error), part, "is not in", error)
        check(error.body and error.body.get("message"), "no message in", error.body)
    else:
        raise AssertionError(f"{part}: nothing was refused")


SYSTEM = {"role": "system", "content": "You answer in one sentence."}


def asked(question):
    return [SYSTEM, {"role": "user", "content": question}]


def by_one_client(client, model):
    check(model in [known.id for known in client.models.list()], "the model is not listed")
    check(client.models.retrieve(model).id == model, "the model is not found")

    settings = {"model": model, "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(prompt="The capital of France is", logprobs=2, **settings)
    text = whole.choices[0].text
    check("Paris" in text, text)
    check(whole.usage.completion_tokens == 24, whole.usage)
    check(len(whole.choices[0].logprobs.tokens) == 24, whole.choices[0].logprobs)
    pieces = client.completions.create(prompt="The capital of France is", stream=True, **settings)
    check("".join(piece.choices[0].text for piece in pieces) == text, "a stream with another text")

    settings = {"model": model, "max_completion_tokens": 120, "temperature": 0}
    whole = client.chat.completions.create(
        messages=asked("What is the sea?"), logprobs=True, top_logprobs=3, **settings
    )
    answer = whole.choices[0]
    check(answer.message.role == "assistant" and answer.message.content, answer)
    check(len(answer.logprobs.content) >= whole.usage.completion_tokens, answer.logprobs)
    check(len(answer.logprobs.content[0].top_logprobs) == 3, answer.logprobs)
    chunks = list(
        client.chat.completions.create(
            messages=asked("What is the sea?"), stream=True, stream_options={"include_usage": True}, **settings
        )
    )
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check(content == answer.message.content, content, "is not", answer.message.content)
    check(chunks[-1].usage == whole.usage, chunks[-1].usage, "is not", whole.usage)
    check(chunks[-2].choices[0].finish_reason == answer.finish_reason, chunks[-2])
    with client.chat.completions.stream(messages=asked("What is the sea?"), **settings) as stream:
        stream.until_done()
        check(stream.get_final_completion().choices[0].message.content == content, "the helper's text is another")

    stop = content.split()[2]
    stopped = client.chat.completions.create(messages=asked("What is the sea?"), stop=[stop], **settings).choices[0]
    check(stopped.finish_reason == "stop" and stop not in stopped.message.content, stopped)
    drawn = [
        client.chat.completions.create(
            model=model, messages=asked("Name a town."), seed=seed, temperature=1, max_tokens=16
        ).choices[0].message.content
        for seed in (1, 1, 2)
    ]
    check(drawn[0] == drawn[1] != drawn[2], drawn)

    refused(openai.NotFoundError, lambda: client.completions.create(model="other", prompt="x"), "other")
    two = client.completions.create(model=model, prompt="x", n=2, max_tokens=2)
    check(len(two.choices) == 2, two)
    refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", best_of=2), "best_of")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="x"), "embedding")

    # A client that goes away.
    stream = client.completions.create(model=model, prompt="Once", max_tokens=1000, temperature=1, stream=True)
    next(iter(stream))
    stream.close()
    client.completions.create(model=model, prompt="Once", max_tokens=1)


async def by_many(url, model, seconds):
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
    questions = [f"What is the number after {n}?" for n in range(24)]

    async def answer(n):
        made = await client.chat.completions.create(
            model=model, messages=asked(questions[n]), max_tokens=16 + n, temperature=0
        )
        return made.choices[0].message.content

    alone = [await answer(n) for n in range(len(questions))]
    end = time.monotonic() + seconds
    counts = {"whole": 0, "left": 0, "other": 0}

    async def one(number):
        at = number
        while time.monotonic() < end:
            at = (at * 7 + 3) % 1000
            n = at % len(questions)
            if at % 5 == 0:
                stream = await client.chat.completions.create(
                    model=model, messages=asked(questions[n]), max_tokens=200, temperature=1, stream=True
                )
                async for _ in stream:
                    break
                await stream.close()
                counts["left"] += 1
                continue
            counts["other"] += await answer(n) != alone[n]
            counts["whole"] += 1

    await asyncio.gather(*(one(number) for number in range(64)))
    print(f"64 clients for {seconds} s: {counts['whole']} answers, {counts['left']} left, {counts['other']} of them other than alone")
    check(counts["whole"] > 0, "nobody had an answer")
    return counts["other"]


def main():
    url, model = sys.argv[1:3]
    by_one_client(openai.OpenAI(base_url=url, api_key="none", max_retries=0), model)
    if len(sys.argv) > 3:
        other = asyncio.run(by_many(url, model, float(sys.argv[3])))
        check(other == 0, other, "texts depended on who else was there")
    print(f"openai {openai.__version__} of Python: in order")


main()
