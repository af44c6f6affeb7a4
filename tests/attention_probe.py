import sys, time
import numpy as np, cupy as cp, torch
sys.path.insert(0, ".")
from tracefuse import fuse, clear_caches
from tracefuse.schedule.gpu import gpu_attention as ga
import tests.bench.bench_attention as B
def check():
    rng = np.random.default_rng(0)
    worst = 0
    for dt in (np.float16,):
        for L, S, D in ((1,1,16),(5,70,32),(64,64,64),(129,200,64),(300,300,128),(77,513,48),(200,130,256),(100,100,160)):
            for causal in (False, True):
                @fuse
                def f(q,k,v):
                    s=(q@k.transpose(0,1,3,2))*0.125
                    if causal:
                        s=np.where(np.arange(k.shape[2])[None,:]<=np.arange(q.shape[2])[:,None],s,-np.inf)
                    w=np.exp(s-s.max(-1,keepdims=True))
                    return (w/w.sum(-1,keepdims=True))@v
                q,k,v=(cp.asarray(rng.standard_normal((2,3,n,D)).astype(dt)) for n in (L,S,S))
                out=cp.asnumpy(f(q,k,v)).astype(float)
                q,k,v=(cp.asnumpy(x).astype(float) for x in (q,k,v))
                s=q@k.swapaxes(-1,-2)*0.125
                if causal: s=np.where(np.arange(S)[None]<=np.arange(L)[:,None],s,-np.inf)
                w=np.exp(s-s.max(-1,keepdims=True)); ref=(w/w.sum(-1,keepdims=True))@v
                e=np.linalg.norm(out-ref)/np.linalg.norm(ref)
                worst=max(worst,e)
                if not e<1e-3: print("WRONG",L,S,D,causal,e)
    print("worst",worst)
check()
B.main([])
for held in sys.argv[1:]:
    ga.MOST_HELD=int(held); clear_caches(); print("held",held)
    B.main(["16384"[:0]+"2048"])
