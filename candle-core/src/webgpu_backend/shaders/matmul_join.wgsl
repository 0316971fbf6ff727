// dst = the sum of `splits` results in sequence, from column dst_first of dst on. An invocation writes one word.

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
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    var sum = 0.0;
    for (var split = 0u; split < p.splits; split++) {
      sum += parts[split * p.len + i];
    }
    lanes[lane] = finish(i / p.n, i % p.n, sum);
  }
  // A word has columns of one row: if dst is packed, its rows are whole words.
  let first = word * DST_LANES;
  dst_put(dst_place(0u, first / p.n, first % p.n) / DST_LANES, lanes);
}
