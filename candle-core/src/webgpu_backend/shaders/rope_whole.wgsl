// All heads are the result.

const_assert UNIT == DST_LANES;

fn store(place: Place, row: u32, first: u32, values: array<f32, UNIT>) {
  var all = values;
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    lanes[lane] = all[lane];
  }
  dst_put((row * p.dim + first) / DST_LANES, lanes);
}
