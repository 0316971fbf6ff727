// All heads are the result.

fn store(word: u32, place: vec4<u32>, lanes: array<dst_t, DST_LANES>) {
  dst_put(word, lanes);
}
