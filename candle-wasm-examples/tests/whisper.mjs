// A tiny Whisper of random weights with the vocabulary of a large one, and files of weights.

/** `config.json`, and weights by name: `[shape, numbers]`. */
export function tinyWhisper(tokenizer) {
    // The times, from 0 to 30 seconds in steps of 0.02, follow the last special token.
    const last = Math.max(...tokenizer.added_tokens.map(({ id }) => id));
    const config = {
        model_type: "whisper", num_mel_bins: 80, max_source_positions: 100, d_model: 16, encoder_attention_heads: 2, encoder_layers: 1,
        decoder_attention_heads: 2, decoder_layers: 1, vocab_size: last + 1502, max_target_positions: 12, suppress_tokens: [],
    };
    const { d_model: size } = config;
    const random = randomNumbers();
    const tensors = {};
    const add = (name, shape, centre, scale) => {
        const numbers = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => centre + scale * random());
        tensors[`model.${name}`] = [shape, numbers];
    };
    const linear = (name, to, from, bias = true) => {
        add(`${name}.weight`, [to, ...from], 0, 1.7 / Math.sqrt(from.reduce((a, b) => a * b)));
        if (bias) add(`${name}.bias`, [to], 0, 0.1);
    };
    const norm = name => {
        add(`${name}.weight`, [size], 1, 0.3);
        add(`${name}.bias`, [size], 0, 0.1);
    };
    const attention = name => {
        for (const part of ["q_proj", "k_proj", "v_proj", "out_proj"]) linear(`${name}.${part}`, size, [size], part !== "k_proj");
        norm(`${name}_layer_norm`);
    };
    linear("encoder.conv1", size, [80, 3]);
    linear("encoder.conv2", size, [size, 3]);
    add("encoder.embed_positions.weight", [config.max_source_positions, size], 0, 1);
    add("decoder.embed_tokens.weight", [config.vocab_size, size], 0, 1);
    add("decoder.embed_positions.weight", [config.max_target_positions, size], 0, 1);
    for (const side of ["encoder", "decoder"]) {
        const layer = `${side}.layers.0`;
        attention(`${layer}.self_attn`);
        if (side === "decoder") attention(`${layer}.encoder_attn`);
        linear(`${layer}.fc1`, 4 * size, [size]);
        linear(`${layer}.fc2`, size, [4 * size]);
        norm(`${layer}.final_layer_norm`);
        norm(`${side}.layer_norm`);
    }
    return { config, weights: tensors };
}

/** Numbers from -1 to 1, by Park and Miller's generator. */
export function randomNumbers(state = 12345) {
    return () => (state = state * 48271 % 0x7fffffff) / 0x7fffffff * 2 - 1;
}

/** Weights as a file. */
export function safetensors(tensors) {
    const header = {};
    const parts = [];
    let offset = 0;
    for (const [name, [shape, numbers]] of Object.entries(tensors)) {
        const bytes = Buffer.from(numbers.buffer);
        header[name] = { dtype: "F32", shape, data_offsets: [offset, offset + bytes.length] };
        offset += bytes.length;
        parts.push(bytes);
    }
    let json = JSON.stringify(header);
    json += " ".repeat((8 - json.length % 8) % 8);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(json.length));
    return Buffer.concat([length, Buffer.from(json), ...parts]);
}
