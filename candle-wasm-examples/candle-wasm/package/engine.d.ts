import type { ChatMessage, ModelInfo } from "./simd/candle.js";

export interface EngineOptions {
    /** "auto", which is the default, takes the GPU if there is one. */
    device?: "auto" | "cpu";
    /** Number of threads on the CPU; if not given, half of what the processor shows, at most 8. */
    threads?: number;
    /** What safetensors are held in; if not given, what suits the device. */
    dtype?: "f32" | "f16" | "bf16";
    /** Hears how much of a file, of the WebAssembly module or of the weights on their way to the device is there, in bytes. */
    onProgress?(progress: { name: string; loaded: number; total: number | undefined }): void;
    /** Hears what the user should know, and what does not stop the loading. */
    onNotice?(notice: { message: string }): void;
}

export interface EngineInfo extends ModelInfo {
    /** `cpu`, or `webgpu` and what the browser tells of the GPU. */
    device: string;
    /** Why the model runs on the CPU, or null. */
    cpu_reason: string | null;
    /** Number of threads of the CPU's ops. */
    threads: number;
    /** Why it is one thread on the CPU, or null. */
    one_thread_reason: string | null;
}

/** What both kinds of request take. Where the model's files recommend sampling settings, those are the defaults of `chat`. */
export interface SamplingParams {
    /** Anything: the engine has one model. */
    model?: string;
    max_tokens?: number | null;
    max_completion_tokens?: number | null;
    temperature?: number | null;
    top_p?: number | null;
    top_k?: number | null;
    min_p?: number | null;
    repeat_penalty?: number | null;
    repeat_last_n?: number | null;
    seed?: number | null;
    stop?: string | string[] | null;
    prompt_lookup?: number | null;
    n?: 1;
    logprobs?: false;
    presence_penalty?: 0;
    frequency_penalty?: 0;
    stream_options?: { include_usage?: boolean };
    /** Ends the answer, with the text so far. */
    signal?: AbortSignal;
}

export interface ChatParams extends SamplingParams {
    messages: ChatMessage[];
    /** Keeps the answer to JSON, or to a JSON schema. The first such answer loads a module of its own and prepares the model's tokens. */
    response_format?: ResponseFormat | null;
    /** Whether a model that thinks does so before it answers; if not given, what its template does. */
    chat_template_kwargs?: { enable_thinking?: boolean } | null;
    /** The most tokens of its thoughts. */
    thinking_budget?: number | null;
}

export type ResponseFormat =
    | { type: "text" }
    | { type: "json_object" }
    | { type: "json_schema"; json_schema: { schema: object; name?: string; description?: string; strict?: boolean | null } };

export interface TextParams extends SamplingParams {
    prompt: string;
}

/** `abort`: `interrupt`, the signal, or the end of the loop over chunks. */
export type FinishReason = "stop" | "length" | "abort";

export interface Usage {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    /** How many of the prompt's tokens the call before had left in the cache. */
    prompt_tokens_details: { cached_tokens: number };
    /** How many tokens were thoughts and their marks. */
    completion_tokens_details: { reasoning_tokens: number };
}

interface Made {
    id: string;
    /** Seconds since 1970. */
    created: number;
    model: string;
}

export interface ChatCompletion extends Made {
    object: "chat.completion";
    choices: [{ index: 0; message: { role: "assistant"; content: string; reasoning_content?: string }; finish_reason: FinishReason; logprobs: null }];
    usage: Usage;
}

export interface ChatChunk extends Made {
    object: "chat.completion.chunk";
    /** Empty in the last chunk with `include_usage`. */
    choices: { index: 0; delta: { role?: "assistant"; content?: string; reasoning_content?: string }; finish_reason: FinishReason | null; logprobs: null }[];
    /** With `include_usage`: null in all chunks but the last. */
    usage?: Usage | null;
}

export interface TextCompletion extends Made {
    object: "text_completion";
    choices: { index: 0; text: string; finish_reason: FinishReason | null; logprobs: null }[];
    usage?: Usage | null;
}

interface Create<Params, Whole, Chunk> {
    (request: Params & { stream: true }): Promise<AsyncGenerator<Chunk, void, void>>;
    (request: Params & { stream?: false }): Promise<Whole>;
}

/** A language model in a Worker of its own. Requests are answered one after another. */
export interface Engine {
    /** What the model's files say, and where it runs; null without a model. */
    readonly info: EngineInfo | null;
    readonly chat: { completions: { create: Create<ChatParams, ChatCompletion, ChatChunk> } };
    readonly completions: { create: Create<TextParams, TextCompletion, TextCompletion> };
    /** Loads another model in place of the one before, which stays if the new one's files are not readable. */
    reload(model: string | Iterable<File>, options?: EngineOptions): Promise<void>;
    /** Frees the model's memory. */
    unload(): Promise<void>;
    /** Ends all answers that are being made, with the text so far. */
    interrupt(): void;
    /** Ends the Worker; the engine is not to be used again. */
    terminate(): void;
}

/** Loads a model: its address or Hub name, as `fromAddress` takes it, or its files. */
export function createEngine(model: string | Iterable<File>, options?: EngineOptions): Promise<Engine>;
