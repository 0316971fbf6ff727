// dst = last((v - mean) / sqrt(mean((v - mean)^2) + eps) * weight + bias) for each row of v; without CENTRED the mean is taken as 0 (RMS
// norm). A workgroup processes a row, an invocation every WG-th word of it. Rows of up to KEPT words per invocation stay in registers
// between the passes.

const KEPT_LANES = max(KEPT, 1u) * DST_LANES;
var<private> kept: array<f32, KEPT_LANES>;

fn load(row: u32, word: u32, start: u32, second: u32) -> array<dst_t, DST_LANES> {
  var v: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    v[lane] = value(start, second, row, word * DST_LANES + lane);
  }
  return v;
}

// Word number `turn` of this invocation.
fn word_of(row: u32, turn: u32, local: u32, start: u32, second: u32) -> array<dst_t, DST_LANES> {
  if (KEPT == 0u) {
    return load(row, turn * WG + local, start, second);
  }
  var v: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    v[lane] = kept[turn * DST_LANES + lane];
  }
  return v;
}

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
  let start = row_start(row);
  let second = second_start(row);
  let words = p.len / DST_LANES;
  var turns = KEPT;
  if (KEPT == 0u) {
    turns = (words + WG - 1u) / WG;
  }
  var sum = 0.0;
  for (var turn = 0u; turn < turns; turn++) {
    let word = turn * WG + local;
    if (word < words) {
      let v = first_value(row, word, start, second);
      for (var lane = 0u; lane < DST_LANES; lane++) {
        if (KEPT > 0u) {
          kept[turn * DST_LANES + lane] = v[lane];
        }
        sum += select(v[lane] * v[lane], v[lane], CENTRED);
      }
    }
  }
  reduce(array<f32, COUNT>(sum), invocation);
  var mean = 0.0;
  var squares = total(0u);
  if (CENTRED) {
    mean = squares / f32(p.len);
    workgroupBarrier();
    sum = 0.0;
    for (var turn = 0u; turn < turns; turn++) {
      if (turn * WG + local < words) {
        let v = word_of(row, turn, local, start, second);
        for (var lane = 0u; lane < DST_LANES; lane++) {
          sum += (v[lane] - mean) * (v[lane] - mean);
        }
      }
    }
    reduce(array<f32, COUNT>(sum), invocation);
    squares = total(0u);
  }
  // Divided by the root, not multiplied by its inverse: one rounding less, and the same digits as the norm composed of ops.
  let root = sqrt(squares / f32(p.len) + p.eps);
  for (var turn = 0u; turn < turns; turn++) {
    let word = turn * WG + local;
    if (word < words) {
      let v = word_of(row, turn, local, start, second);
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        let i = word * DST_LANES + lane;
        lanes[lane] = last((v[lane] - mean) / root * weight(i) + bias(i), second, i);
      }
      dst_put(result_row(row) * words + word, lanes);
    }
  }
}
