// The first heads are the result, the others go into a cache.

fn store(word: u32, place: vec4<u32>, lanes: array<dst_t, DST_LANES>) {
  let batch = place.x;
  let head = place.y;
  let seq = place.z;
  let i = place.w;
  if (head < p.queries) {
    dst_put((((batch * p.queries + head) * p.seq + seq) * p.dim + i) / DST_LANES, lanes);
  } else {
    let start = p.cache_offset + batch * p.cache_batch + (head - p.queries) * p.cache_head + seq * p.cache_seq;
    var values: array<cache_t, CACHE_LANES>;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      values[lane] = lanes[lane];
    }
    cache_put((start + i) / DST_LANES, values);
  }
}
