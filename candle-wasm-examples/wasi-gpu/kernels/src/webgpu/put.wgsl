// Writes the bytes that `load` gives, words of the source, to `dst` at any offset. An invocation writes one word.

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let begin = p.dst_offset;
  let end = p.dst_offset + p.bytes;
  let word = (begin >> 2u) + flat(group, groups) * SIZE + local;
  if word > (end - 1u) >> 2u {
    return;
  }
  let first = word << 2u;
  // The source of the word's first byte; at most 3 bytes before the source's start, so 4 are added.
  let source = first + (p.src_offset - p.dst_offset) + 4u;
  let upper = source >> 2u;
  let shift = (source & 3u) * 8u;
  var value = load(upper - 1u) >> shift;
  if shift != 0u {
    value |= load(upper) << (32u - shift);
  }
  var mask = 0xffffffffu;
  if begin > first {
    mask <<= (begin - first) * 8u;
  }
  if end - first < 4u {
    mask &= (1u << ((end - first) * 8u)) - 1u;
  }
  if mask == 0xffffffffu {
    dst[word] = value;
  } else {
    dst[word] = (dst[word] & ~mask) | (value & mask);
  }
}
