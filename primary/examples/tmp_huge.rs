//! tmp
fn main(){ let o=terrace_primary::RegionOptions{slots:300,slot_stride:8192,block_bytes:5000,huge_pages:terrace_config::Choice::Require,lock_memory:true,numa_node:Some(0),prefault_threads:0};
 let r=terrace_primary::Region::create(&o,&|_,_|{}); match r { Ok(r)=>println!("{:?} {:?} {}", r.pages(), r.parts(), r.write_slot(terrace_primary::SlotId(299),&[1;5000])), Err(e)=>println!("{e}") } }
