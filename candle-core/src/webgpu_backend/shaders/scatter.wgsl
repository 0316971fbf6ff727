// dst[.., ids[.., j, ..], ..] = or += src[.., j, ..] for j < p.count in order, along a dimension. The offset functions return the offsets
// for j = 0 and index p.first; the strides are along the dimension. dst has the elements for p.window indexes from p.first on; others are
// skipped.
//
// By column, for dtypes of a word: an invocation processes a position of the other dimensions. Otherwise it processes a word of dst, which
// is contiguous then, and finds for each lane the j whose index selects it.

fn changed(old: dst_t, update: dst_t) -> dst_t {
  if (ADD) {
    // Rounded to the dtype after each sum, as on the CPU.
    return rounded(f_add(old, update));
  }
  return update;
}

fn scatter_column(i: u32) {
  let ids_first = ids_offset(i);
  let src_first = src_offset(i);
  let dst_first = dst_offset(i);
  for (var j = 0u; j < p.count; j++) {
    // NOTHING is past every window.
    let place = id_at(ids_first + j * p.ids_step) - p.first;
    if (place < p.window) {
      let at = dst_first + place * p.dst_step;
      var lanes: array<dst_t, DST_LANES>;
      lanes[0] = changed(dst_at(at), src_at(src_first + j * p.src_step));
      dst_put(at, lanes);
    }
  }
}

// Element i of dst, after all updates of it.
fn updated(i: u32, old: dst_t) -> dst_t {
  let place = i / p.dst_step % p.size;
  let ids_first = ids_offset(i);
  let src_first = src_offset(i);
  var value = old;
  for (var j = 0u; j < p.count; j++) {
    if (id_at(ids_first + j * p.ids_step) == place) {
      value = changed(value, src_at(src_first + j * p.src_step));
    }
  }
  return value;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let invocation = flat(workgroup, workgroups, local, WG);
  if (BY_COLUMN) {
    if (invocation < p.len) {
      scatter_column(invocation);
    }
    return;
  }
  let word = p.dst_offset / DST_LANES + invocation;
  if (word * DST_LANES >= p.dst_offset + p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let at = word * DST_LANES + lane;
    lanes[lane] = dst_at(at);
    if (at >= p.dst_offset && at < p.dst_offset + p.len) {
      lanes[lane] = updated(at - p.dst_offset, lanes[lane]);
    }
  }
  dst_put(word, lanes);
}
