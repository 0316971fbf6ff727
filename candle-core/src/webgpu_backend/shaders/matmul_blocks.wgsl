// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for blocks of rhs and ROWS rows of lhs in a workgroup. Neighbouring workgroups
// take other rows and the same columns.
//
// A subgroup makes COLS columns of the result from SUMS columns of rhs (with a gate twice as many), and its lanes share k: each takes
// pieces of PIECE elements, whose codes are one load of 16 bytes. The whole workgroup first brings lhs to workgroup memory in the form that
// its arithmetic wants, STRIP pieces of each row at a time. What a subgroup needs of rhs first is on its way before that, and later DEPTH
// pieces ahead: that keeps memory busy.
//
// Elements of a piece are handled by eights. RUN of them share a scale in rhs.
//
// The order in which a sum is made depends on k and WG alone: which rows are there beside it, and how many, must not change a result. So a
// strip that is not the last is whole turns of a subgroup over its pieces, and whole turns of the workgroup over its eights.
//
// Sums and what they are made of are variables by themselves, since drivers leave arrays in memory that loops of this size go over: `each
// i in N` repeats a line, or the lines up to a closing brace, with #i counted up (`unroll.rs`).
//
// Written by Rust, by format: RhsPiece, rhs_piece(e) loads it, rhs_eight(piece, i) has eight of its codes and rhs_scale(piece, run) the
// factor of their products and that of lhs alone. By arithmetic, matmul_blocks_*.wgsl: how lhs is kept, and dot_eight().

const EIGHTS = PIECE / 8u;
const RUNS = PIECE / RUN;
const RUN_EIGHTS = RUN / 8u;
const SUBGROUPS = WG / SUBGROUP;
// Words of the result that a subgroup makes in a row.
const WORDS = COLS / DST_LANES;
const ROW_WORDS = SUBGROUPS * WORDS;
const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP % RUN_EIGHTS == 0u;
const_assert COLS % DST_LANES == 0u;
const_assert WHOLE || TILES == 1u;
const_assert WHOLE || (STRIP % SUBGROUP == 0u && STRIP * EIGHTS % WG == 0u);

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

// Neighbouring lanes read neighbouring elements of these.
var<workgroup> lhs_eights: array<LhsEight, ROWS * EIGHTS * STRIP>;
// What a code of lhs is worth, and the sum of the run.
var<workgroup> lhs_runs: array<vec2<f32>, ROWS * RUNS * STRIP>;
var<workgroup> totals: array<f32, SUBGROUPS * ROWS * SUMS>;
var<workgroup> squares: array<f32, SUBGROUPS * ROWS>;

fn total(i: u32) -> f32 {
  return totals[i];
}

// What a norm multiplies a row by, beside its weights.
fn norm_scale(row: u32) -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < SUBGROUPS; i++) {
    sum += squares[i * ROWS + row];
  }
  return inverseSqrt(sum / f32(p.k) + p.eps);
}

// Keeps eight number i of a row of the strip.
fn keep(row: u32, i: u32, found: Staged) {
  let part = i % EIGHTS;
  lhs_eights[(row * EIGHTS + part) * STRIP + i / EIGHTS] = found.eight;
  if (part % RUN_EIGHTS == 0u) {
    lhs_runs[(row * RUNS + part / RUN_EIGHTS) * STRIP + i / EIGHTS] = found.run;
  }
}

fn sum_of_squares(eight: array<vec4<f32>, 2>) -> f32 {
  let four = fma(eight[0], eight[0], eight[1] * eight[1]);
  return (four.x + four.y) + (four.z + four.w);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row_groups = (p.m + ROWS - 1u) / ROWS;
  let group = flat(workgroup, workgroups, 0u, 1u);
  let first_row = group % row_groups * ROWS;
  let group_col = group / row_groups * (TILES * SUBGROUPS * COLS);
  if (group_col >= p.n) {
    return;
  }
  let lane = invocation.lane;
  let local = invocation.subgroup * SUBGROUP + lane;
  // Where rows of lhs begin. Past the last one it is that one again.
  each r in ROWS: let lhs#r = p.lhs_offset + min(first_row + #ru, p.m - 1u) * p.lhs_row;
  each r in ROWS: var squares#r = 0.0;
  // Groups of columns one after the other, for the same lhs.
  for (var tile = 0u; tile < TILES; tile++) {
    let first_col = group_col + tile * SUBGROUPS * COLS;
    if (tile > 0u) {
      // Sums that others still read.
      workgroupBarrier();
    }
    let col = first_col + invocation.subgroup * COLS;
    // Where columns of rhs begin: those of the gate, then those of what it is multiplied with.
    each c in SUMS: let rhs#c = p.rhs_offset + (#cu / COLS * p.n + min(col + #cu % COLS, p.n - 1u)) * p.rhs_row;
    each r in ROWS, c in SUMS: var sum#r_#c = 0.0;
    let pieces = p.k / PIECE;
    for (var strip = 0u; strip < pieces; strip += STRIP) {
      let end = min(pieces - strip, STRIP);
      each d in DEPTH, c in SUMS: var next#d_#c = rhs_piece(rhs#c + (strip + min(lane + #du * SUBGROUP, end - 1u)) * PIECE);
      if (strip > 0u) {
        workgroupBarrier();
      }
      if (tile == 0u) {
        // Brings the strip to workgroup memory. All loads of a turn come before their use.
        let count = end * EIGHTS;
        for (var first = 0u; first < count; first += STAGES * WG) {
          each s in STAGES {
            let i#s = first + #su * WG + local;
            let from#s = strip * PIECE + 8u * min(i#s, count - 1u);
            let weight#s = weight_word(from#s);
            each r in ROWS: let word#s_#r = lhs_word(lhs#r + from#s);
          }
          each s in STAGES, r in ROWS {
            let eight#s_#r = lhs_eight(word#s_#r);
            if (NORMED) {
              squares#r += select(0.0, sum_of_squares(eight#s_#r), i#s < count);
            }
            // The lanes of a run exchange what they have, so all of them come here.
            let found#s_#r = staged(weighted(eight#s_#r, weight#s));
            if (i#s < count) {
              keep(#ru, i#s, found#s_#r);
            }
          }
        }
        workgroupBarrier();
      }
      for (var first = lane; first < end; first += DEPTH * SUBGROUP) {
        each d in DEPTH {
          let at#d = first + #du * SUBGROUP;
          if (at#d < end) {
            each c in SUMS: let piece#d_#c = next#d_#c;
            let then#d = at#d + DEPTH * SUBGROUP;
            if (then#d < end) {
              each c in SUMS: next#d_#c = rhs_piece(rhs#c + (strip + then#d) * PIECE);
            }
            each u in RUNS {
              each c in SUMS {
                let scale#u_#c = rhs_scale(piece#d_#c, #uu);
                each e in RUN_EIGHTS: let code#u_#c_#e = rhs_eight(piece#d_#c, #uu * RUN_EIGHTS + #eu);
              }
              each r in ROWS {
                let run#u_#r = lhs_runs[(#ru * RUNS + #uu) * STRIP + at#d];
                each e in RUN_EIGHTS: let lhs#u_#r_#e = lhs_eights[(#ru * EIGHTS + #uu * RUN_EIGHTS + #eu) * STRIP + at#d];
                each c in SUMS {
                  var number#u_#r_#c = Number();
                  each e in RUN_EIGHTS: number#u_#r_#c = dot_eight(lhs#u_#r_#e, code#u_#c_#e, number#u_#r_#c);
                  let before#u_#r_#c = fma(scale#u_#c.y, run#u_#r.y, sum#r_#c);
                  sum#r_#c = fma(scale#u_#c.x, f32(number#u_#r_#c) * run#u_#r.x, before#u_#r_#c);
                }
              }
            }
          }
        }
      }
    }
    each r in ROWS, c in SUMS {
      let total#r_#c = subgroupAdd(sum#r_#c);
      if (lane == 0u) {
        totals[(invocation.subgroup * ROWS + #ru) * SUMS + #cu] = total#r_#c;
      }
    }
    if (NORMED) {
      each r in ROWS {
        let squares_of#r = subgroupAdd(squares#r);
        if (lane == 0u) {
          squares[invocation.subgroup * ROWS + #ru] = squares_of#r;
        }
      }
    }
    workgroupBarrier();
    for (var i = local; i < ROWS * ROW_WORDS; i += WG) {
      let row = i / ROW_WORDS;
      let dst_row = first_row + row;
      let subgroup = i % ROW_WORDS / WORDS;
      let first = i % WORDS * DST_LANES;
      let at = first_col + subgroup * COLS + first;
      if (dst_row < p.m && at < p.n) {
        var lanes: array<dst_t, DST_LANES>;
        for (var j = 0u; j < DST_LANES; j++) {
          lanes[j] = finish(dst_row, at + j, value(row, (subgroup * ROWS + row) * SUMS + first + j, at + j));
        }
        dst_put((dst_row * p.dst_row + p.dst_first + at) / DST_LANES, lanes);
      }
    }
  }
}
