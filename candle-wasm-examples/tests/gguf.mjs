// The model that comes with candle-dvm as one GGUF file, as llama.cpp's converter writes one: weights in f32, so that texts stay the same, or
// those of the matrices in Q8_0, and with a chat template or without.
import { readFile } from "node:fs/promises";

const NAMES = [
    ["model.", ""], ["layers.", "blk."], ["embed_tokens", "token_embd"], ["input_layernorm", "attn_norm"],
    ["post_attention_layernorm", "ffn_norm"], ["self_attn.q_proj", "attn_q"], ["self_attn.k_proj", "attn_k"],
    ["self_attn.v_proj", "attn_v"], ["self_attn.o_proj", "attn_output"], ["mlp.gate_proj", "ffn_gate"], ["mlp.up_proj", "ffn_up"],
    ["mlp.down_proj", "ffn_down"],
];
const ALIGNMENT = 32;
/** Numbers of types of elements. */
const [F32, Q8_0] = [0, 8];

/** The bytes of the file for the model in a folder. */
export async function gguf(folder, quantized = false, template = null) {
    const json = async name => JSON.parse(await readFile(`${folder}/${name}`, "utf8"));
    const [config, tokenizer] = [await json("config.json"), await json("tokenizer.json")];
    const tensors = weights(await readFile(`${folder}/model.safetensors`), config).map(tensor =>
        quantized && tensor.shape.length > 1 ? { ...tensor, type: Q8_0, bytes: q8_0(tensor.bytes) } : { ...tensor, type: F32 });
    const entries = metadata(config, tokenizer);
    if (template !== null) entries.push(["tokenizer.chat_template", 8, string(template)]);
    const head = [Buffer.from("GGUF"), u32(3), u64(tensors.length), u64(entries.length)];
    for (const [key, type, value] of entries) head.push(string(key), u32(type), value);
    let offset = 0;
    for (const { name, shape, type, bytes } of tensors) {
        head.push(string(name), u32(shape.length), ...shape.toReversed().map(u64), u32(type), u64(offset));
        offset += bytes.length + padding(bytes.length);
    }
    const header = Buffer.concat(head);
    const data = tensors.flatMap(({ bytes }) => [bytes, Buffer.alloc(padding(bytes.length))]);
    return Buffer.concat([header, Buffer.alloc(padding(header.length)), ...data]);
}

const padding = length => (ALIGNMENT - length % ALIGNMENT) % ALIGNMENT;

function u32(n) {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(n);
    return bytes;
}

function f32(x) {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(x);
    return bytes;
}

function u64(n) {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(BigInt(n));
    return bytes;
}

const string = text => Buffer.concat([u64(Buffer.byteLength(text)), Buffer.from(text)]);
const array = (type, items) => Buffer.concat([u32(type), u64(items.length), ...items]);

/** `[key, type, bytes]`; the types are those of the format: 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array. */
function metadata(config, tokenizer) {
    const tokens = Array(config.vocab_size).fill("");
    for (const [token, id] of Object.entries(tokenizer.model.vocab)) tokens[id] = token;
    const kinds = tokens.map(() => 1);
    for (const { id, content } of tokenizer.added_tokens) {
        tokens[id] = content;
        kinds[id] = 3;
    }
    const numbers = {
        "llama.context_length": config.max_position_embeddings, "llama.embedding_length": config.hidden_size,
        "llama.block_count": config.num_hidden_layers, "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads, "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.rope.dimension_count": config.head_dim, "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.bos_token_id": config.bos_token_id, "tokenizer.ggml.eos_token_id": config.eos_token_id,
    };
    return [
        ["general.architecture", 8, string("llama")],
        ["tokenizer.ggml.model", 8, string("gpt2")],
        ["tokenizer.ggml.pre", 8, string("gpt-2")],
        ["llama.attention.layer_norm_rms_epsilon", 6, f32(config.rms_norm_eps)],
        ["llama.rope.freq_base", 6, f32(config.rope_parameters.rope_theta)],
        ["tokenizer.ggml.tokens", 9, array(8, tokens.map(string))],
        ["tokenizer.ggml.token_type", 9, array(5, kinds.map(u32))],
        ["tokenizer.ggml.merges", 9, array(8, tokenizer.model.merges.map(pair => string(pair.join(" "))))],
        ["tokenizer.ggml.add_bos_token", 7, Buffer.from([1])],
        ...Object.entries(numbers).map(([key, number]) => [key, 4, u32(number)]),
    ];
}

/** bf16 to f32, with the rows of q and k in GGUF's order: there a head's element 2i is rotated with 2i + 1, not i with i + half. */
function weights(file, config) {
    const start = 8 + Number(file.readBigUInt64LE(0));
    const header = JSON.parse(file.subarray(8, start).toString());
    delete header.__metadata__;
    return Object.entries(header).map(([from, { shape, data_offsets }]) => {
        let name = from === "model.norm.weight" ? "output_norm.weight" : from;
        for (const [theirs, ours] of NAMES) name = name.replace(theirs, ours);
        const rowLength = shape.at(-1);
        const rows = shape.length === 1 ? 1 : shape[0];
        const half = config.head_dim / 2;
        const turned = /attn_[qk]\./.test(name);
        const bytes = Buffer.alloc(4 * rows * rowLength);
        for (let row = 0; row < rows; row++) {
            const within = row % config.head_dim;
            const source = turned ? row - within + (within % 2) * half + Math.floor(within / 2) : row;
            for (let i = 0; i < rowLength; i++) {
                const bits = file.readUInt16LE(start + data_offsets[0] + 2 * (source * rowLength + i));
                bytes.writeUInt32LE(bits * 65536, 4 * (row * rowLength + i));
            }
        }
        return { name, shape, bytes };
    });
}

/** Blocks of 32 floats: a scale in f16, and a signed byte for each. */
function q8_0(floats) {
    const blocks = Buffer.alloc(floats.length / 128 * 34);
    for (let block = 0; block < floats.length / 128; block++) {
        const xs = Array.from({ length: 32 }, (_, i) => floats.readFloatLE(128 * block + 4 * i));
        const scale = Math.max(...xs.map(Math.abs)) / 127;
        blocks.writeUInt16LE(f16(scale), 34 * block);
        xs.forEach((x, i) => blocks.writeInt8(scale && Math.round(x / scale), 34 * block + 2 + i));
    }
    return blocks;
}

/** The bits of the nearest f16 to a number from 0 up to 65504. */
function f16(x) {
    const exponent = Math.max(Math.floor(Math.log2(x)), -14);
    return (exponent + 15) * 1024 + Math.round(x * 2 ** (10 - exponent)) - 1024;
}
