"""What agents ask of `candle-dvm api`, through LangChain and OpenAI's package of Python.

    agents.py URL MODEL EMBEDDINGS SPEECH WAV
"""

import sys

import langchain_openai
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field


def check(ok, *what):
    if not ok:
        raise AssertionError(" ".join(str(part) for part in what))


class Town(BaseModel):
    """A town."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)
    inhabitants: int = Field(ge=1000, le=50_000_000)
    is_capital: bool


class Towns(BaseModel):
    """Some towns."""

    towns: list[Town] = Field(min_length=1, max_length=2)


@tool
def weather(city: str, days: int) -> str:
    """The weather in a city over the next days."""
    return f"{days} days of sun in {city}"


def by_langchain(url, model, embeddings):
    chat = langchain_openai.ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=200, max_retries=0)
    check("Paris" in chat.invoke("What is the capital of France?").content, "no Paris")
    text = "".join(piece.content for piece in chat.stream("What is the capital of France?"))
    check("Paris" in text, text)
    for method in ("json_schema", "function_calling"):
        found = chat.with_structured_output(Towns, method=method).invoke("Name a town in Italy.")
        check(isinstance(found, Towns) and found.towns, method, found)
    asked = HumanMessage("How is the weather in Oslo for three days?")
    for choice in ("weather", "required", "any"):
        answer = chat.bind_tools([weather], tool_choice=choice).invoke([asked])
        check(len(answer.tool_calls) == 1, choice, answer)
        call = answer.tool_calls[0]
        check(call["name"] == "weather" and isinstance(call["args"]["days"], int), call)
    streamed = None
    for piece in chat.bind_tools([weather], tool_choice="weather").stream([asked]):
        streamed = piece if streamed is None else streamed + piece
    check(streamed.tool_calls[0]["args"] == call["args"], streamed.tool_calls, call)
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    check(chat.bind_tools([weather]).invoke([asked, AIMessage("", tool_calls=[call]), result]).content, "no answer")
    # Responses, as LangChain asks for them.
    responses = langchain_openai.ChatOpenAI(
        base_url=url, api_key="none", model=model, temperature=0, max_tokens=200, max_retries=0, use_responses_api=True
    )
    check("Paris" in responses.invoke("What is the capital of France?").text, "no Paris in the response")
    text = "".join(piece.text for piece in responses.stream("What is the capital of France?"))
    check("Paris" in text, text)
    answer = responses.bind_tools([weather], tool_choice="weather").invoke([asked])
    check(answer.tool_calls[0]["name"] == "weather", answer)
    found = responses.with_structured_output(Towns, method="json_schema").invoke("Name a town in Italy.")
    check(isinstance(found, Towns), found)
    # LangChain sends token ids.
    vectors = langchain_openai.OpenAIEmbeddings(base_url=url, api_key="none", model=embeddings, check_embedding_ctx_length=False)
    rows = vectors.embed_documents(["a cat", "a kitten", "the stock exchange"])
    similar = [sum(a * b for a, b in zip(rows[0], row)) for row in rows[1:]]
    check(similar[0] > similar[1], similar)


def by_openai(client, model, speech, wav):
    response = client.responses.create(model=model, input="What is the capital of France?", temperature=0, max_output_tokens=60)
    check("Paris" in response.output_text and response.status == "completed", response)
    with client.responses.stream(model=model, input="What is the capital of France?", temperature=0, max_output_tokens=60) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    check(text == response.output_text == final.output_text, text, "is not", response.output_text)
    check(final.usage.output_tokens == response.usage.output_tokens, final.usage)
    parsed = client.responses.parse(model=model, input="Name a town in Italy.", text_format=Towns, temperature=0, max_output_tokens=300)
    check(isinstance(parsed.output_parsed, Towns), parsed)
    parsed = client.chat.completions.parse(
        model=model, messages=[{"role": "user", "content": "Name a town."}], response_format=Towns, temperature=0, max_tokens=300
    )
    check(isinstance(parsed.choices[0].message.parsed, Towns), parsed)
    with open(wav, "rb") as file:
        heard = client.audio.transcriptions.create(model=speech, file=file)
    check("frozen lake" in heard.text.lower(), heard.text)
    with open(wav, "rb") as file:
        verbose = client.audio.transcriptions.create(
            model=speech, file=file, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en"
        )
    check(verbose.words and verbose.segments[0].seek == 0 and verbose.text == heard.text, verbose)
    with open(wav, "rb") as file:
        events = list(client.audio.transcriptions.create(model=speech, file=file, stream=True))
    check(events[-1].type == "transcript.text.done" and events[-1].text == heard.text, events)


def main():
    url, model, embeddings, speech, wav = sys.argv[1:]
    by_openai(openai.OpenAI(base_url=url, api_key="none", max_retries=0), model, speech, wav)
    by_langchain(url, model, embeddings)
    print("LangChain and openai as agents use them: in order")


main()
