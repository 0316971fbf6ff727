// Rows of lhs in 8 bits, for matmul_rows.wgsl: the numbers that matmul_blocks.wgsl computes in each workgroup, and in the same order, so that
// a product of several rows has the results of each row alone. A workgroup converts a row; with a norm it also finds the norm's factor,
// whose sum of squares depends on WG.

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

const EIGHTS = PIECE / 8u;
const RUNS = PIECE / RUN;
const RUN_EIGHTS = RUN / 8u;
const SUBGROUPS = WG / SUBGROUP;
const_assert SUBGROUP % RUN_EIGHTS == 0u;

var<workgroup> squares: array<f32, SUBGROUPS>;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row = flat(workgroup, workgroups, 0u, 1u);
  if (row >= p.rows) {
    return;
  }
  let local = invocation.subgroup * SUBGROUP + invocation.lane;
  let count = p.k / 8u;
  let pieces = p.k / PIECE;
  var sum = 0.0;
  for (var first = 0u; first < count; first += WG) {
    let i = first + local;
    let inside = i < count;
    let at = 8u * min(i, count - 1u);
    var eight = lhs_eight(lhs_word(p.src_offset + row * p.src_row + at));
    if (NORMED) {
      let four = fma(eight[0], eight[0], eight[1] * eight[1]);
      sum += select(0.0, (four.x + four.y) + (four.z + four.w), inside);
      let weight = lhs_eight(alpha_word(p.alpha_offset + at));
      eight[0] *= weight[0];
      eight[1] *= weight[1];
    }
    // The lanes of a run exchange their values, so all of them get here.
    let found = staged(eight);
    if (inside) {
      let part = i % EIGHTS;
      let piece = i / EIGHTS;
      // Two eights are a word of the product's loads, in which neighbouring lanes read neighbouring vectors.
      bytes[((row * EIGHTS / 2u + part / 2u) * pieces + piece) * 2u + part % 2u] = found.eight;
      if (part % RUN_EIGHTS == 0u) {
        runs[(row * RUNS + part / RUN_EIGHTS) * pieces + piece] = found.run;
      }
    }
  }
  if (NORMED) {
    let total = subgroupAdd(sum);
    if (invocation.lane == 0u) {
      squares[invocation.subgroup] = total;
    }
    workgroupBarrier();
    if (local == 0u) {
      var all = 0.0;
      for (var i = 0u; i < SUBGROUPS; i++) {
        all += squares[i];
      }
      runs[p.rows * RUNS * pieces + row] = vec2<f32>(inverseSqrt(all / f32(p.k) + p.eps), 0.0);
    }
  }
}
