// Joins the parts of a row in a workgroup: for few rows with many parts, for which one invocation would wait in sequence. CREWS times QUADS
// invocations: each processes four columns of every CREWS-th part, AHEAD of them at a time.

const PART = V_DIM + 2u;
const QUADS = V_DIM / 4u;
const CREWS = WG / QUADS;
const LEAST = -0x1.fffffep+127f;
const_assert V_DIM % 4u == 0u && QUADS <= WG && 4u % DST_LANES == 0u;

var<workgroup> weights: array<f32, MOST_SPLITS>;
var<workgroup> sums: array<vec4<f32>, WG>;

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
  let local = invocation.local;
  let first = row * p.splits * PART;
  var most = LEAST;
  for (var split = local; split < p.splits; split += WG) {
    most = max(most, parts_in[first + split * PART + V_DIM]);
  }
  most = workgroup_max(most, invocation);
  var sum = 0.0;
  for (var split = local; split < p.splits; split += WG) {
    let weight = exp(parts_in[first + split * PART + V_DIM] - most);
    sum = fma(parts_in[first + split * PART + V_DIM + 1u], weight, sum);
    weights[split] = weight;
  }
  reduce(array<f32, COUNT>(sum), invocation);
  let quad = local % QUADS;
  let crew = local / QUADS;
  var value = vec4<f32>(0.0);
  for (var split = crew; split < p.splits; split += AHEAD * CREWS) {
    var parts: array<vec4<f32>, AHEAD>;
    for (var i = 0u; i < AHEAD; i++) {
      let start = first + min(split + i * CREWS, p.splits - 1u) * PART + quad * 4u;
      parts[i] = vec4<f32>(parts_in[start], parts_in[start + 1u], parts_in[start + 2u], parts_in[start + 3u]);
    }
    for (var i = 0u; i < AHEAD; i++) {
      let other = split + i * CREWS;
      value = fma(vec4<f32>(select(0.0, weights[min(other, p.splits - 1u)], other < p.splits)), parts[i], value);
    }
  }
  sums[local] = value;
  workgroupBarrier();
  if (local < QUADS) {
    for (var other = 1u; other < CREWS; other++) {
      value += sums[other * QUADS + local];
    }
    value /= divisor(total(0u));
    for (var i = 0u; i < 4u; i += DST_LANES) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = value[i + lane];
      }
      dst_put((row * V_DIM + quad * 4u + i) / DST_LANES, lanes);
    }
  }
}
