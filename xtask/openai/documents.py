"""Many answers with a JSON schema from `candle-dvm api`, 16 at once; each has to be a valid document.

    documents.py URL MODEL COUNT
"""

import asyncio
import sys
import time

import openai
from pydantic import BaseModel, Field


class Town(BaseModel):
    """A town."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)
    inhabitants: int = Field(ge=1000, le=50_000_000)
    is_capital: bool


async def documents(url, model, count):
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
    schema = Town.model_json_schema()
    form = {"type": "json_schema", "json_schema": {"name": "town", "schema": schema}}
    turns = asyncio.Semaphore(16)
    tokens = {True: 0, False: 0}

    async def one(seed, constrained):
        async with turns:
            made = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"Write JSON about town number {seed}."}], seed=seed, temperature=0.8,
                max_tokens=300 if constrained else 60, response_format=form if constrained else {"type": "text"},
            )
        tokens[constrained] += made.usage.completion_tokens
        if constrained:
            Town.model_validate_json(made.choices[0].message.content)

    seconds = {}
    for constrained in (True, False):
        start = time.monotonic()
        await asyncio.gather(*(one(seed, constrained) for seed in range(count)))
        seconds[constrained] = time.monotonic() - start
    rates = {kind: tokens[kind] / seconds[kind] for kind in seconds}
    print(f"{count} of {count} documents are valid; {rates[True]:.0f} tokens a second with a schema, {rates[False]:.0f} without")


url, model, count = sys.argv[1:]
asyncio.run(documents(url, model, int(count)))
