// Bytes from one buffer to another, at any offsets.

struct Params {
  src_offset: u32,
  dst_offset: u32,
  bytes: u32,
  src_words: u32,
}

@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> dst: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

fn load(word: u32) -> u32 {
  if word >= p.src_words {
    return 0u;
  }
  return src[word];
}
