// The first heads are the result, the others are written to a cache, which may have another dtype. position_of() returns the index.

const_assert UNIT % DST_LANES == 0u && UNIT % CACHE_LANES == 0u;

fn store(place: Place, row: u32, first: u32, values: array<f32, UNIT>) {
  var all = values;
  if (place.head < p.queries) {
    let start = ((place.batch * p.queries + place.head) * p.seq + place.seq) * p.dim + first;
    for (var at = 0u; at < UNIT; at += DST_LANES) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = all[at + lane];
      }
      dst_put((start + at) / DST_LANES, lanes);
    }
    return;
  }
  let position = position_of(place.batch);
  if (position > p.capacity - p.seq) {
    return;
  }
  let start = p.cache_offset + place.batch * p.cache_batch + (place.head - p.queries) * p.cache_head
    + (position + place.seq) * p.cache_seq + first;
  for (var at = 0u; at < UNIT; at += CACHE_LANES) {
    var lanes: array<cache_t, CACHE_LANES>;
    for (var lane = 0u; lane < CACHE_LANES; lane++) {
      lanes[lane] = all[at + lane];
    }
    cache_put((start + at) / CACHE_LANES, lanes);
  }
}
