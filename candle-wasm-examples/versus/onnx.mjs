// ONNX files of one op each, written as the format's protobuf schema (onnx.proto3) has them.
const FLOAT = 1;

const varint = n => {
    const bytes = [];
    for (; n > 127; n = Math.floor(n / 128)) bytes.push(n % 128 + 128);
    return [...bytes, n];
};
const number = (field, n) => [...varint(field * 8), ...varint(n)];
const bytes = (field, content) => [...varint(field * 8 + 2), ...varint(content.length), ...content];
const text = (field, content) => bytes(field, [...new TextEncoder().encode(content)]);
const float = (field, x) => [...varint(field * 8 + 5), ...new Uint8Array(new Float32Array([x]).buffer)];

const value = (name, shape) => {
    const dims = shape.flatMap(dim => bytes(1, number(1, dim)));
    const tensor = [...number(1, FLOAT), ...bytes(2, dims)];
    return [...text(1, name), ...bytes(2, bytes(1, tensor))];
};
const attribute = ([name, x]) => Number.isInteger(x)
    ? [...text(1, name), ...number(3, x), ...number(20, 2)]
    : [...text(1, name), ...float(2, x), ...number(20, 1)];

/** A model of one op of opset 17: `inputs` are shapes by name, `output` is a shape, all f32. */
export function model(op, inputs, output, attributes = {}) {
    const names = Object.keys(inputs);
    const node = [
        ...names.flatMap(name => text(1, name)), ...text(2, "out"), ...text(4, op),
        ...Object.entries(attributes).flatMap(entry => bytes(5, attribute(entry))),
    ];
    const graph = [
        ...bytes(1, node), ...text(2, op),
        ...names.flatMap(name => bytes(11, value(name, inputs[name]))), ...bytes(12, value("out", output)),
    ];
    return Uint8Array.from([...number(1, 8), ...bytes(7, graph), ...bytes(8, number(2, 17))]);
}
