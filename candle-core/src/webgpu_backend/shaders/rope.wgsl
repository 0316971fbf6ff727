// UNIT elements of a head at a time: normed, rotated, stored. store() comes from rope_whole.wgsl or rope_cache.wgsl, main() and
// normed() from rope_plain.wgsl or rope_norms.wgsl.

// Offsets of elements of x and of their destination.
struct Place {
  batch: u32,
  head: u32,
  seq: u32,
  start: u32,
}

// Offsets of row `row` of the heads in the order of dst.
fn place_of(row: u32) -> Place {
  let batch = row / (p.heads * p.seq);
  var head = row / p.seq % p.heads;
  var seq = row % p.seq;
  if (HEADS_LAST) {
    head = row % p.heads;
    seq = row / p.heads % p.seq;
  }
  return Place(batch, head, seq, p.x_offset + batch * p.x_batch + head * p.x_head + seq * p.x_seq);
}

// x[i] * cos -+ x[partner] * sin in the first `rotary` elements of the first `rotated` heads, x[i] elsewhere. `root` is that of
// the head's mean square.
fn write(place: Place, row: u32, first: u32, root: f32) {
  let cos_start = p.cos_offset + place.batch * p.cos_batch + place.seq * p.cos_seq;
  let sin_start = p.sin_offset + place.batch * p.sin_batch + place.seq * p.sin_seq;
  let half = p.rotary / 2u;
  var values: array<f32, UNIT>;
  for (var lane = 0u; lane < UNIT; lane++) {
    let i = first + lane;
    let x = normed(x_at(place.start + i * p.x_dim), place.head, i, root);
    values[lane] = x;
    if (place.head >= p.rotated || i >= p.rotary) {
      continue;
    }
    var pair = i % half;
    var partner = select(i - half, i + half, i < half);
    var ahead = i < half;
    if (INTERLEAVED) {
      pair = i / 2u;
      partner = i ^ 1u;
      ahead = (i & 1u) == 0u;
    }
    let c = cos_table_at(cos_start + pair * p.cos_dim);
    let s = sin_table_at(sin_start + pair * p.sin_dim);
    let across = normed(x_at(place.start + partner * p.x_dim), place.head, partner, root) * s;
    values[lane] = x * c + select(across, -across, ahead);
  }
  store(place, row, first, values);
}
