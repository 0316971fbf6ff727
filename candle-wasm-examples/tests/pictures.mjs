// Networks of random weights that look at pictures, and pictures as files.
import { crc32, deflateSync } from "node:zlib";
import { randomNumbers, safetensors } from "./whisper.mjs";

/** Tensors by name. With a `gain` of 1 sums of products stay as large as what comes in; activations may take more. */
class Made {
    constructor(gain = 1) {
        Object.assign(this, { tensors: {}, random: randomNumbers(), gain });
    }

    add(name, shape, centre, spread) {
        const numbers = new Float32Array(shape.reduce((a, b) => a * b));
        for (let i = 0; i < numbers.length; i++) numbers[i] = centre + spread * this.random();
        this.tensors[name] = [shape, numbers];
    }

    weight(name, shape, bias = false) {
        this.add(`${name}.weight`, shape, 0, 1.7 * this.gain / Math.sqrt(shape.slice(1).reduce((a, b) => a * b)));
        if (bias) this.add(`${name}.bias`, [shape[0]], 0, 0.1);
    }

    norm(name, size) {
        this.add(`${name}.weight`, [size], 1, 0.1);
        this.add(`${name}.bias`, [size], 0, 0.1);
    }

    /** A convolution and its batch norm. */
    unit(name, [outputs, inputs, kernel], conv = "conv") {
        this.weight(`${name}.${conv}`, [outputs, inputs, kernel, kernel]);
        this.norm(`${name}.bn`, outputs);
        this.add(`${name}.bn.running_mean`, [outputs], 0, 0.1);
        this.add(`${name}.bn.running_var`, [outputs], 1, 0.1);
    }
}

/** YOLOv8 nano as a file. Classes are unlikely but for a few places, so that there are few boxes, and none near another one's likelihood. */
export function randomYolo() {
    const made = new Made(1.6);
    const block = (name, inputs, outputs, pairs) => {
        made.unit(`${name}.cv1`, [outputs, inputs, 1]);
        for (let i = 0; i < pairs; i++) {
            for (const part of ["cv1", "cv2"]) made.unit(`${name}.bottleneck.${i}.${part}`, [outputs / 2, outputs / 2, 3]);
        }
        made.unit(`${name}.cv2`, [outputs, (2 + pairs) * outputs / 2, 1]);
    };
    made.unit("net.b1.0", [16, 3, 3]);
    for (const [down, name, channels, pairs] of [["b1.1", "b2.0", 32, 1], ["b2.1", "b2.2", 64, 2], ["b3.0", "b3.1", 128, 2], ["b4.0", "b4.1", 256, 1]]) {
        made.unit(`net.${down}`, [channels, channels / 2, 3]);
        block(`net.${name}`, channels, channels, pairs);
    }
    made.unit("net.b5.0.cv1", [128, 256, 1]);
    made.unit("net.b5.0.cv2", [256, 512, 1]);
    for (const [name, inputs, outputs] of [["n1", 384, 128], ["n2", 192, 64], ["n4", 192, 128], ["n6", 384, 256]]) {
        block(`fpn.${name}`, inputs, outputs, 1);
    }
    made.unit("fpn.n3", [64, 64, 3]);
    made.unit("fpn.n5", [128, 128, 3]);
    made.add("head.dfl.conv.weight", [1, 16, 1, 1], 0, 0);
    made.tensors["head.dfl.conv.weight"][1].forEach((_, i, steps) => { steps[i] = i; });
    for (const [name, inner, outputs] of [["cv2", 64, 64], ["cv3", 80, 80]]) {
        for (const [i, channels] of [64, 128, 256].entries()) {
            made.unit(`head.${name}.${i}.0`, [inner, channels, 3]);
            made.unit(`head.${name}.${i}.1`, [inner, inner, 3]);
            made.weight(`head.${name}.${i}.2`, [outputs, inner, 1, 1], true);
            if (name === "cv2") continue;
            made.add(`head.cv3.${i}.2.weight`, [outputs, inner, 1, 1], 0, 6);
            made.add(`head.cv3.${i}.2.bias`, [outputs], -8, 0.1);
        }
    }
    return safetensors(made.tensors);
}

/** MobileSAM as a file, 40 MB. */
export function randomSam() {
    const made = new Made();
    const encoder = "image_encoder";
    made.unit(`${encoder}.patch_embed.seq.0`, [32, 3, 3], "c");
    made.unit(`${encoder}.patch_embed.seq.2`, [64, 32, 3], "c");
    const three = (name, inputs, inner, outputs) => {
        made.unit(`${name}.conv1`, [inner, inputs, 1], "c");
        made.unit(`${name}.conv2`, [inner, 1, 3], "c");
        made.unit(`${name}.conv3`, [outputs, inner, 1], "c");
    };
    const stages = [[64, 2, 2, 7], [128, 2, 4, 7], [160, 6, 5, 14], [320, 2, 10, 7]];
    for (const [stage, [size, depth, heads, side]] of stages.entries()) {
        const layer = `${encoder}.layers.${stage}`;
        for (let i = 0; i < depth; i++) {
            const name = `${layer}.blocks.${i}`;
            if (stage === 0) {
                three(name, size, 4 * size, size);
                continue;
            }
            made.norm(`${name}.attn.norm`, size);
            made.weight(`${name}.attn.qkv`, [3 * size, size], true);
            made.weight(`${name}.attn.proj`, [size, size], true);
            made.add(`${name}.attn.attention_biases`, [heads, side * side], 0, 1);
            made.unit(`${name}.local_conv`, [size, 1, 3], "c");
            made.norm(`${name}.mlp.norm`, size);
            made.weight(`${name}.mlp.fc1`, [4 * size, size], true);
            made.weight(`${name}.mlp.fc2`, [size, 4 * size], true);
        }
        if (stages[stage + 1]) three(`${layer}.downsample`, size, stages[stage + 1][0], stages[stage + 1][0]);
    }
    made.weight(`${encoder}.neck.0`, [256, 320, 1, 1]);
    made.norm(`${encoder}.neck.1`, 256);
    made.weight(`${encoder}.neck.2`, [256, 256, 3, 3]);
    made.norm(`${encoder}.neck.3`, 256);

    const prompts = "prompt_encoder";
    made.add(`${prompts}.pe_layer.positional_encoding_gaussian_matrix`, [2, 128], 0, 1.7);
    const vectors = ["not_a_point_embed", "no_mask_embed", ...[0, 1, 2, 3].map(i => `point_embeddings.${i}`)];
    for (const name of vectors) made.add(`${prompts}.${name}.weight`, [1, 256], 0, 1);
    for (const [i, shape] of [[0, [4, 1, 2, 2]], [3, [16, 4, 2, 2]], [6, [256, 16, 1, 1]]]) made.weight(`${prompts}.mask_downscaling.${i}`, shape, true);
    for (const [i, size] of [[1, 4], [4, 16]]) made.norm(`${prompts}.mask_downscaling.${i}`, size);

    const decoder = "mask_decoder";
    made.add(`${decoder}.iou_token.weight`, [1, 256], 0, 1);
    made.add(`${decoder}.mask_tokens.weight`, [4, 256], 0, 1);
    const attention = (name, inner) => {
        for (const part of ["q_proj", "k_proj", "v_proj"]) made.weight(`${decoder}.${name}.${part}`, [inner, 256], true);
        made.weight(`${decoder}.${name}.out_proj`, [256, inner], true);
    };
    for (const i of [0, 1]) {
        const layer = `transformer.layers.${i}`;
        attention(`${layer}.self_attn`, 256);
        attention(`${layer}.cross_attn_token_to_image`, 128);
        attention(`${layer}.cross_attn_image_to_token`, 128);
        for (const n of [1, 2, 3, 4]) made.norm(`${decoder}.${layer}.norm${n}`, 256);
        made.weight(`${decoder}.${layer}.mlp.lin1`, [2048, 256], true);
        made.weight(`${decoder}.${layer}.mlp.lin2`, [256, 2048], true);
    }
    attention("transformer.final_attn_token_to_image", 128);
    made.norm(`${decoder}.transformer.norm_final_attn`, 256);
    for (const [i, inputs, outputs] of [[0, 256, 64], [3, 64, 32]]) {
        made.add(`${decoder}.output_upscaling.${i}.weight`, [inputs, outputs, 2, 2], 0, 1.7 / Math.sqrt(inputs));
        made.add(`${decoder}.output_upscaling.${i}.bias`, [outputs], 0, 0.1);
    }
    made.norm(`${decoder}.output_upscaling.1`, 64);
    const heads = [["iou_prediction_head", 4], ...[0, 1, 2, 3].map(i => [`output_hypernetworks_mlps.${i}`, 32])];
    for (const [name, outputs] of heads) {
        for (const i of [0, 1, 2]) made.weight(`${decoder}.${name}.layers.${i}`, [i === 2 ? outputs : 256, 256], true);
    }
    return safetensors(made.tensors);
}

/** A picture of waves and a disc, as a PNG. */
export function png(width, height) {
    const rows = Buffer.alloc(height * (1 + 3 * width));
    for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
            const disc = (x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 3) ** 2;
            const at = y * (1 + 3 * width) + 1 + 3 * x;
            for (const channel of [0, 1, 2]) rows[at + channel] = disc ? 230 - 60 * channel : 90 + 60 * Math.sin((x + channel * y) / (9 + 7 * channel));
        }
    }
    const chunk = (type, data) => {
        const named = Buffer.concat([Buffer.from(type), data]);
        const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
        length.writeUInt32BE(data.length);
        sum.writeUInt32BE(crc32(named));
        return Buffer.concat([length, named, sum]);
    };
    const header = Buffer.alloc(13);
    header.writeUInt32BE(width, 0);
    header.writeUInt32BE(height, 4);
    // 8 bits of each of three colours.
    header.set([8, 2], 8);
    return Buffer.concat([
        Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", header), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0)),
    ]);
}
