// A few bytes from the host, which come as parameters.

struct Params {
  // 0.
  src_offset: u32,
  dst_offset: u32,
  bytes: u32,
  src_words: u32,
  words: array<vec4<u32>, 15>,
}

@group(0) @binding(0) var<storage, read_write> dst: array<u32>;
@group(0) @binding(1) var<uniform> p: Params;

fn load(word: u32) -> u32 {
  if word >= p.src_words {
    return 0u;
  }
  return p.words[word / 4u][word % 4u];
}
