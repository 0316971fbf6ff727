// dst[i] = x[i] * cos -+ x[partner] * sin in the first `rotated` heads, x[i] in the others; an invocation writes one word of dst,
// whose lanes are in one head. store() comes from rope_*.wgsl.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.len) {
    return;
  }
  let rows = word * DST_LANES / p.dim;
  let batch = rows / (p.heads * p.seq);
  var head = rows / p.seq % p.heads;
  var seq = rows % p.seq;
  if (HEADS_LAST) {
    head = rows % p.heads;
    seq = rows / p.heads % p.seq;
  }
  let start = p.x_offset + batch * p.x_batch + head * p.x_head + seq * p.x_seq;
  let cos_start = p.cos_offset + batch * p.cos_batch + seq * p.cos_seq;
  let sin_start = p.sin_offset + batch * p.sin_batch + seq * p.sin_seq;
  let half = p.dim / 2u;
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = (word * DST_LANES + lane) % p.dim;
    let x = x_at(start + i * p.x_dim);
    lanes[lane] = x;
    if (head >= p.rotated) {
      continue;
    }
    var pair = i % half;
    var partner = select(i - half, i + half, i < half);
    var first = i < half;
    if (INTERLEAVED) {
      pair = i / 2u;
      partner = i ^ 1u;
      first = (i & 1u) == 0u;
    }
    let c = cos_table_at(cos_start + pair * p.cos_dim);
    let s = sin_table_at(sin_start + pair * p.sin_dim);
    let turned = x_at(start + partner * p.x_dim) * s;
    lanes[lane] = x * c + select(turned, -turned, first);
  }
  store(word, vec4<u32>(batch, head, seq, word * DST_LANES % p.dim), lanes);
}
