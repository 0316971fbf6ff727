// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for blocks of rhs and all ROWS rows of lhs, which rows_as_bytes.wgsl converted to
// 8 bits. As in matmul_blocks.wgsl, a subgroup computes COLS columns of the result from SUMS columns of rhs, its lanes share k, and a sum has
// the same order. Rows are read from memory, where the caches have them; weights are loaded one vector ahead.
//
// Loops to ROWS, SUMS, RUNS, RUN_EIGHTS and RUN_WORDS are unrolled, so that sums and codes stay in registers.

const EIGHTS = PIECE / 8u;
const SUBGROUPS = WG / SUBGROUP;
// Words of the result that a subgroup computes in a row.
const WORDS = COLS / DST_LANES;
const ROW_WORDS = SUBGROUPS * WORDS;
const_assert RUNS * RUN_EIGHTS == EIGHTS && RUN_WORDS * 2u == RUN_EIGHTS;
const_assert COLS % DST_LANES == 0u;

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

var<workgroup> totals: array<f32, SUBGROUPS * ROWS * SUMS>;

fn total(i: u32) -> f32 {
  return totals[i];
}

// The norm's factor of a row.
fn norm_scale(row: u32) -> f32 {
  return lhs_runs[ROWS * RUNS * (p.k / PIECE) + row].x;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let first_col = flat(workgroup, workgroups, 0u, 1u) * (SUBGROUPS * COLS);
  if (first_col >= p.n) {
    return;
  }
  let lane = invocation.lane;
  let local = invocation.subgroup * SUBGROUP + lane;
  let col = first_col + invocation.subgroup * COLS;
  let pieces = p.k / PIECE;
  // The columns of rhs: those of the gate, then those of the up projection.
  var columns: array<u32, SUMS>;
  var next: array<RhsPiece, SUMS>;
  for (var i = 0u; i < SUMS; i++) {
    columns[i] = p.rhs_offset + ((i / COLS) * p.n + min(col + i % COLS, p.n - 1u)) * p.rhs_row;
    next[i] = rhs_piece(columns[i] + min(lane, pieces - 1u) * PIECE);
  }
  var sums: array<f32, ROWS * SUMS>;
  for (var at = lane; at < pieces; at += SUBGROUP) {
    var now: array<RhsPiece, SUMS>;
    // After the last vector there is none to load; it is loaded again.
    let ahead = min(at + SUBGROUP, pieces - 1u) * PIECE;
    for (var i = 0u; i < SUMS; i++) {
      now[i] = next[i];
      next[i] = rhs_piece(columns[i] + ahead);
    }
    for (var run = 0u; run < RUNS; run++) {
      var codes: array<RhsEight, SUMS * RUN_EIGHTS>;
      var scales: array<vec2<f32>, SUMS>;
      for (var i = 0u; i < SUMS; i++) {
        scales[i] = rhs_scale(now[i], run);
        for (var j = 0u; j < RUN_EIGHTS; j++) {
          codes[i * RUN_EIGHTS + j] = rhs_eight(now[i], run * RUN_EIGHTS + j);
        }
      }
      for (var row = 0u; row < ROWS; row++) {
        var eights: array<LhsEight, RUN_EIGHTS>;
        for (var j = 0u; j < RUN_WORDS; j++) {
          let word = lhs[(row * EIGHTS / 2u + run * RUN_WORDS + j) * pieces + at];
          eights[2u * j] = word.xy;
          eights[2u * j + 1u] = word.zw;
        }
        let scale = lhs_runs[(row * RUNS + run) * pieces + at];
        for (var i = 0u; i < SUMS; i++) {
          var number = Number();
          for (var j = 0u; j < RUN_EIGHTS; j++) {
            number = dot_eight(eights[j], codes[i * RUN_EIGHTS + j], number);
          }
          let before = fma(scales[i].y, scale.y, sums[row * SUMS + i]);
          sums[row * SUMS + i] = fma(scales[i].x, f32(number) * scale.x, before);
        }
      }
    }
  }
  for (var row = 0u; row < ROWS; row++) {
    for (var i = 0u; i < SUMS; i++) {
      let sum = subgroupAdd(sums[row * SUMS + i]);
      if (lane == 0u) {
        totals[(invocation.subgroup * ROWS + row) * SUMS + i] = sum;
      }
    }
  }
  workgroupBarrier();
  for (var i = local; i < ROWS * ROW_WORDS; i += WG) {
    let row = i / ROW_WORDS;
    let subgroup = i % ROW_WORDS / WORDS;
    let first = i % WORDS * DST_LANES;
    let at = first_col + subgroup * COLS + first;
    if (at < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var j = 0u; j < DST_LANES; j++) {
        lanes[j] = finish(row, at + j, value(row, (subgroup * ROWS + row) * SUMS + first + j, at + j));
      }
      dst_put((row * p.dst_row + p.dst_first + at) / DST_LANES, lanes);
    }
  }
}
