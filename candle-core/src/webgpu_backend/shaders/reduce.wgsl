// dst[o] = the reduction of row o / chunks, or of its part o % chunks if rows are split into several; an invocation or a workgroup
// (reduce_alone.wgsl, reduce_group.wgsl) writes one word of dst.
//
// Minima and maxima start from the row's first element, or from the carry if the row continues (CARRY). So an identity is not needed, and a
// NaN wins exactly if it comes first, as in a sequential comparison.

struct Found {
  value: src_t,
  // The index of the value in its row.
  place: u32,
}

fn look(row: u32, j: u32) -> Found {
  let i = row * p.inner + j;
  return Found(src_at(src_offset(i)), place_of(i, j));
}

fn wins(a: src_t, b: src_t) -> bool {
  if (GREATEST) {
    return f_gt(a, b) == 1u;
  }
  return f_lt(a, b) == 1u;
}

fn combine(a: Found, b: Found) -> Found {
  if (SUM) {
    return Found(f_add(a.value, b.value), 0u);
  }
  if (wins(b.value, a.value) || (b.place < a.place && f_eq(a.value, b.value) == 1u)) {
    return b;
  }
  return a;
}

// Every step-th element of part o, from its element number `first`.
fn sweep(o: u32, first: u32, step: u32) -> Found {
  let row = o / p.chunks;
  let begin = (o % p.chunks) * p.chunk;
  let end = begin + min(p.chunk, p.inner - begin);
  var found: Found;
  if (!SUM) {
    found = before(row);
  }
  for (var j = begin + first; j < end; j += step) {
    found = combine(found, look(row, j));
  }
  return found;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = word_of(workgroup, workgroups, local);
  if (word * DST_LANES >= p.outputs) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  var found: Found;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let o = word * DST_LANES + lane;
    if (o < p.outputs) {
      found = reduced(o, local);
      if (SUM && CARRY) {
        found.value = f_add(before(o).value, found.value);
      }
      lanes[lane] = result(found);
    }
  }
  if (writes(local)) {
    dst_put(word, lanes);
    keep_place(word, found.place);
  }
}
