window.eagleChat = {update(v){ this.last = v; }, bindViews(){}};
